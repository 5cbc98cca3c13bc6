"""``python -m archipel_serve`` is the command ``archipel-serve``."""

from archipel_serve.server.command import main

if __name__ == "__main__":
    main()
