"""A live page of a federation, for its operator: on this machine only, and behind a token.

Starlette and uvicorn come with Flower. The page works without a line of script but for its refreshing; what it can do,
it does by the same functions as the commands. Three things keep other pages of the operator's browser from using it:
the cookie is sent to no other site's requests (SameSite=Strict), a form brings a token that only the page knows, and
Host and Origin must be this server's own, so that no foreign name can lead here.
"""

import hmac
import secrets
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from urllib.parse import parse_qs

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from fedclass.deploy.decisions import decide
from fedclass.deploy.status import ago, metrics, read_status
from fedclass.deploy.words import say_finish, say_next
from fedclass.errors import ConfigError, FedclassError
from fedclass.runs.audit import operator

COOKIE = "fedclass"
LONGEST = 1 << 17  # bytes of a form: a hundred names, each letter as twelve
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{}'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer", browsers name no origin of the page's own forms
    "Cache-Control": "no-store",
}
TEMPLATES = jinja2.Environment(loader=jinja2.PackageLoader("fedclass.deploy"), autoescape=True, trim_blocks=True)


class Page:
    """token: who knows it may look and decide.  hosts: names under which this server may be called."""

    def __init__(self, root: Path, token: str, hosts: tuple[str, ...]) -> None:
        self.root, self.token, self.hosts = root, token, hosts
        self.form = secrets.token_urlsafe(32)

    def app(self) -> Starlette:
        routes = [
            Route("/", self._guarded(self.show)),
            Route("/part", self._guarded(self.part)),
            Route("/status.json", self._guarded(self.as_json)),
            Route("/metrics", self._guarded(self.as_metrics)),
            Route("/do", self._guarded(self.do), methods=["POST"]),
        ]
        return Starlette(routes=routes)

    def server(self) -> uvicorn.Server:
        quiet = {"log_level": "warning", "access_log": False, "server_header": False}
        return uvicorn.Server(uvicorn.Config(self.app(), ws="none", lifespan="off", **quiet))  # type: ignore[arg-type]

    def _guarded(self, answer: Callable[[Request], object]) -> Callable[[Request], object]:
        async def guarded(request: Request) -> Response:
            if request.headers.get("host") not in self.hosts:
                return PlainTextResponse("this page has another address\n", 421)
            given = request.query_params.get("token")
            if given is not None and self._is_token(given) and request.method == "GET" and request.url.path == "/":
                response: Response = RedirectResponse("/", 303)
                response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
                return response
            bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not self._is_token(request.cookies.get(COOKIE, "")) and not self._is_token(bearer):
                return PlainTextResponse("open the address that `fedclass deploy status --web` has printed\n", 401)
            try:
                found = answer(request)
                response = await found if hasattr(found, "__await__") else found  # type: ignore[assignment]
            except FedclassError as error:
                response = PlainTextResponse(f"{error}\n", 400 if isinstance(error, ConfigError) else 503)
            nonce = getattr(request.state, "nonce", "none")
            for name, value in HEADERS.items():
                response.headers[name] = value.format(nonce)
            return response

        return guarded

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _rendered(self, template: str, **more: object) -> HTMLResponse:
        page = TEMPLATES.get_template(template)
        return HTMLResponse(page.render(status=read_status(self.root), form=self.form, ago=ago, **more))

    def show(self, request: Request) -> Response:
        request.state.nonce = secrets.token_urlsafe(16)
        return self._rendered("page.html", nonce=request.state.nonce)

    def part(self, _: Request) -> Response:
        return self._rendered("part.html")

    def as_json(self, _: Request) -> Response:
        return JSONResponse(asdict(read_status(self.root)))

    def as_metrics(self, _: Request) -> Response:
        return PlainTextResponse(metrics(read_status(self.root)), media_type="text/plain; version=0.0.4")

    async def do(self, request: Request) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and origin not in [f"http://{host}" for host in self.hosts]:
            return PlainTextResponse("this form is another page's\n", 403)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LONGEST:
                return PlainTextResponse("too long\n", 413)
        fields = parse_qs(body.decode("utf-8", "replace"))
        given = fields.get("form", [""])[0]
        if not hmac.compare_digest(given.encode(), self.form.encode()):
            return PlainTextResponse("this form is out of date; load the page again\n", 403)
        action, names = fields.get("action", [""])[0], fields.get("name", [])
        by = f"{operator()}, by the page"
        match action:
            case "next":
                say_next(self.root, by=by)
            case "finish":
                say_finish(self.root, by=by)
            case "approve" | "reject" | "merge":
                decide(self.root, action, names, by=by)
            case _:
                return PlainTextResponse("there is no such button\n", 400)
        return RedirectResponse("/", 303)


def serve_page(root: Path, *, port: int, say: Callable[[str], None]) -> None:
    """Until the process is ended. say: prints the page's address; whoever knows it may decide."""
    read_status(root)  # a mistake is told here
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"--port {port}: cannot be used ({error.strerror}); 0 takes any that is free") from error
        port, token = listening.getsockname()[1], secrets.token_urlsafe(32)
        page = Page(root, token, (f"127.0.0.1:{port}", f"localhost:{port}"))
        say(f"http://127.0.0.1:{port}/?token={token}")
        say(f"Prometheus: http://127.0.0.1:{port}/metrics with the header `Authorization: Bearer {token}`")
        page.server().run(sockets=[listening])
