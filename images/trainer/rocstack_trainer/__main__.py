"""`python3 -m rocstack_trainer` is the same program as `rocstack-train`."""

from rocstack_trainer.cli import main

if __name__ == "__main__":
    main()
