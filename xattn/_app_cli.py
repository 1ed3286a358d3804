"""The command `xattn app`. Heavy imports wait inside it."""

from typing import Annotated

import typer

from xattn._command import Debug, reporting


def view(
    model: Annotated[
        str, typer.Option("--model", "-m", help="The model to begin with; others can be chosen on the page.")
    ] = "demo",
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond 127.0.0.1, others can load models on this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 7860,
    max_upload_mb: Annotated[float, typer.Option(help="Size of the largest upload in megabytes.")] = 20,
    device: Annotated[str, typer.Option(help="Where to run, e.g. cpu or cuda.")] = "cpu",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    debug: Debug = False,
) -> None:
    """Look at explanations in the browser."""
    with reporting(debug):
        from xattn.app.server import serve

        serve(model, host=host, port=port, most_mb=max_upload_mb, device=device, browser=browser)
