"""What several algorithms share. For writers of algorithms; users need not know it."""
