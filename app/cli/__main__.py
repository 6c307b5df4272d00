"""`python -m app.cli`: the same as the `laneway` script."""

from app.cli.main import main

if __name__ == "__main__":
    main()
