"""``python -m archipel``: the command."""

from archipel.cli.main import main

if __name__ == "__main__":
    main()
