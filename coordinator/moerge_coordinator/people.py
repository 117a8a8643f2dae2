"""People whom a proxy has signed in, for the dashboard alone.

REST needs tokens behind a proxy too: a page of another site could make its calls with a person's cookies.
"""

from ipaddress import ip_address, ip_network

from starlette.types import ASGIApp, Receive, Scope, Send

from moerge_coordinator.person import PERSON
from moerge_coordinator.settings import Settings, SignIn
from moerge_proto.owners import Identity, Role

_DASHBOARD = "/dashboard/"


class People:
    """Wraps the app: calls of the dashboard get the person of a trusted proxy's header.

    It needs the peer's own address, so it must be outside of a layer that replaces it.
    """

    def __init__(self, app: ASGIApp, settings: SignIn, proxies: list[str]) -> None:
        self._app, self._proxies = app, [ip_network(proxy) for proxy in proxies]
        self._header = settings.header.lower().encode()
        self._known = {
            value.strip(): Identity(role=role, owner=None, domains=[], name=name)
            for role, people in ((Role.READER, settings.readers), (Role.OPERATOR, settings.operators))
            for name, value in people.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and f"{scope['path']}/".startswith(_DASHBOARD):
            scope = {**scope, PERSON: self._person(scope)}
        await self._app(scope, receive, send)

    def _person(self, scope: Scope) -> Identity | None:
        peer = scope.get("client")
        if peer is None or not any(ip_address(peer[0]) in proxy for proxy in self._proxies):
            return None
        given = [value for name, value in scope["headers"] if name == self._header]
        if len(given) != 1:  # a proxy that adds its header to the caller's own proves nothing
            return None
        return self._known.get(given[0].decode("latin-1").strip())


def signed_in(app: ASGIApp, settings: Settings) -> ASGIApp:
    """The app, inside `People` if the settings name some."""
    return app if settings.sign_in is None else People(app, settings.sign_in, settings.trusted_proxies)
