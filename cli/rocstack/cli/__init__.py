"""The command line: the only part of rocstack that prints."""


def start() -> None:
    """What the command `rocstack` runs. Ctrl-C while modules are still loading ends it without a traceback."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until main has its own handler
    from rocstack.cli.main import main

    main()
