"""Arguments of `vllm serve` that are the gateway's to give."""

from rocstack.base.errors import BadInput

OWN = (
    *("--host", "--port", "--uds", "--api-key", "--model", "--served-model-name", "--enable-lora", "--max-loras"),
    *("--max-cpu-loras", "--max-lora-rank", "--lora-modules", "--root-path", "--ssl-keyfile", "--ssl-certfile"),
    "--allowed-local-media-path",
)


def refuse_own(arguments: tuple[str, ...]) -> None:
    """
    Raises:
        BadInput: an argument that is the gateway's to give.
    """
    for each in arguments:
        name = each.partition("=")[0].replace("_", "-")
        if name in OWN:
            raise BadInput.of("engine-argument", name=name)
