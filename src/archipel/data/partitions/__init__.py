"""Who holds which example: partitions of one data set over clients."""
