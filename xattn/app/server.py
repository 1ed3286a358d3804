"""Serving the viewer: on this machine only, with nothing sent or fetched elsewhere."""

import os
import socket
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from xattn.errors import ArgumentError, MissingDependencyError

if TYPE_CHECKING:
    import gradio as gr
    from gradio.http_server import Server

    from xattn.app.shelf import ModelShelf

LOCALHOST = "127.0.0.1"
SESSION_SECONDS = 3600
"""Files of a session are deleted after this time."""


def serve(
    model: str = "demo",
    *,
    host: str = LOCALHOST,
    port: int = 7860,
    most_mb: float = 20,
    device: str = "cpu",
    browser: bool = True,
) -> None:
    """Serves the viewer until it is interrupted.

    Args:
        model: The model to begin with.
        host: Address to listen on; anything but 127.0.0.1 lets others use this machine and load models on it.
        port: Port to listen on.
        most_mb: Size of the largest upload in megabytes.
        device: Where models run.
        browser: Whether to open the page in a browser.

    Raises:
        MissingDependencyError: Without gradio.
        ArgumentError: If the port is taken, the address not one of this machine, or a number out of range.
        WeightsError: If the weights of the model cannot be had.
    """
    if not most_mb > 0:
        raise ArgumentError(f"max_upload_mb: expected a positive number, got {most_mb}")
    _check_address(host)
    with private_folder() as folder:
        import_gradio()
        from xattn.app.shelf import ModelShelf

        shelf = ModelShelf(device)
        with shelf.use(model):
            pass  # a model that cannot be had is refused before a page is up
        blocks = make_page(shelf, folder, model, most_mb)
        try:
            launch(blocks, host, port, most_mb, browser)
        finally:
            shelf.close()


def _check_address(host: str) -> None:
    """Refuse what is no address of this machine before anything is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        raise ArgumentError(
            f"host: expected an address of this machine, such as {LOCALHOST}, or 0.0.0.0 for all of them, got {host!r} "
            f"({getattr(error, 'strerror', None) or error})"
        ) from None


@contextmanager
def private_folder() -> Iterator[Path]:
    """A temporary folder that takes all files, gone in the end; gradio is told before it is imported."""
    with tempfile.TemporaryDirectory(prefix="xattn-app-") as folder:
        told = {"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
        before = {name: os.environ.get(name) for name in told}
        os.environ.update(told)
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def import_gradio() -> None:
    """Imports gradio.

    Raises:
        MissingDependencyError: Without it.
    """
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError('the viewer needs gradio: pip install "xattn[app]"') from error


def make_page(shelf: "ModelShelf", folder: Path, model: str, most_mb: float) -> "gr.Blocks":
    """The page with its events.

    Args:
        shelf: The models.
        folder: Where files are written.
        model: The model to begin with.
        most_mb: Size of the largest upload in megabytes.
    """
    import gradio as gr

    from xattn.app import examples, page
    from xattn.app.events import Events
    from xattn.app.upload import MEGABYTE
    from xattn.app.viewer import Viewer
    from xattn.models.photos import backbone_file, installed_onnx

    has_photos = backbone_file().is_file() or installed_onnx() is not None
    models = list(dict.fromkeys(["demo", *(["photos"] if has_photos else []), model]))
    scenes, photographs = examples.scenes(), examples.photographs()
    shown = [*scenes, *photographs]
    first = photographs[0] if photographs and model != "demo" else scenes[0]
    viewer = Viewer(shelf, folder, int(most_mb * MEGABYTE))
    blocks = gr.Blocks(title="xattn", analytics_enabled=False, delete_cache=(SESSION_SECONDS, SESSION_SECONDS))
    with blocks:
        parts = page.lay_out(models, model, shown, most_mb)
        Events(viewer, parts, shown, first).connect(blocks)
    return blocks


def launch(blocks: "gr.Blocks", host: str, port: int, most_mb: float, browser: bool) -> None:
    """Listens until interrupted."""
    import gradio as gr

    from xattn.app.page import CSS
    from xattn.app.upload import MEGABYTE

    local = ("system-ui", "sans-serif")
    theme = gr.themes.Default(primary_hue="purple", font=local, font_mono=("ui-monospace", "monospace"))
    blocks.queue(default_concurrency_limit=8, max_size=64)
    try:
        _, url, _ = blocks.launch(
            server_name=host,
            server_port=port,
            share=False,
            max_file_size=int(most_mb * MEGABYTE),
            quiet=True,
            prevent_thread_lock=True,
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            theme=theme,
            css=CSS,
        )
    except OSError:
        raise ArgumentError(f"port: cannot listen on {host}:{port}; the port is taken") from None
    from xattn import _terminal as terminal

    terminal.say(f"The viewer is at {url} (stop with Ctrl-C)")
    if browser:
        webbrowser.open(url)
    try:
        while blocks.is_running:
            time.sleep(0.1)
    except KeyboardInterrupt:
        terminal.say("Stopping the viewer")
    finally:
        Thread(target=_hang_up, args=(blocks.server,), daemon=True).start()
        blocks.close(verbose=False)


def _hang_up(server: "Server") -> None:
    """Ends the connections of open pages, which would keep the server for as long as a page listens to its stream."""
    while server.thread.is_alive():
        if server.should_exit:  # no more of them are taken
            for connection in list(server.server_state.connections):
                with suppress(RuntimeError):  # the loop has just ended
                    connection.loop.call_soon_threadsafe(connection.transport.close)
        time.sleep(0.1)
