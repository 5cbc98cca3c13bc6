"""What makes one client's data differ from another's."""
