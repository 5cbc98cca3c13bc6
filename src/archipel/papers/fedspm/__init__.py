"""Tables and figures of the FedSPM paper."""
