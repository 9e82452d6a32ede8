import sys

if __name__ == "__main__":
    from runner.cli import main

    sys.exit(main())
