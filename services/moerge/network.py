"""HTTP clients, which no other module makes: proxies and certificates of the environment. Ports of servers."""

import ipaddress
import os
import socket
import ssl
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import getproxies_environment, proxy_bypass

import httpx

from moerge.errors import MoergeError

_SCHEMES = ("http", "https", "socks5", "socks5h")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def client(url: httpx.URL, *, transport: httpx.BaseTransport | None = None, **options: Any) -> httpx.Client:
    """A client for this address only. A loopback address needs no proxy; a `transport` replaces the network.

    Raises:
        MoergeError: a variable's proxy or certificates can't be used.
    """
    if transport is not None:
        return direct_client(transport=transport, **options)
    variable = proxy_variable(url)
    proxy = None if variable is None else _proxy(variable, f"use no proxy for this host: NO_PROXY={url.host}")
    encrypted = url.scheme == "https" or (proxy is not None and proxy.url.scheme == "https")
    context = _authorities() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which trusts nobody
    if proxy is not None and proxy.url.scheme == "https":
        proxy.ssl_context = context
    return direct_client(proxy=proxy, verify=context, **options)


def direct_client(**options: Any) -> httpx.Client:
    """A client that ignores the environment."""
    return httpx.Client(trust_env=False, **options)


def proxy_variable(url: httpx.URL) -> str | None:
    """The variable of the proxy for an address, such as HTTPS_PROXY; None without a proxy."""
    if is_loopback(url.host) or any(map(proxy_bypass, (url.host, url.netloc.decode()))):
        return None
    return _variable(url.scheme) or _variable("all")


def require_environment() -> None:
    """Requires usable proxies and certificates, for a library that makes clients and reads all variables."""
    schemes = () if getproxies_environment().get("no") == "*" else ("http", "https", "all")
    for variable in filter(None, map(_variable, schemes)):
        _proxy(variable, "unset it")
    _authorities()


def require_free(host: str, port: int) -> None:
    """Requires that a server can listen there."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        todo = "stop the program that listens there, or choose another host or port"
        raise MoergeError(f"can't listen on {host}:{port}: {error.strerror}", where="port", todo=todo) from error


def _variable(scheme: str) -> str | None:
    """The variable of the proxy for a scheme; its name in lower case is preferred."""
    if not getproxies_environment().get(scheme):
        return None
    return max(name for name in os.environ if name.lower() == f"{scheme}_proxy")


def _proxy(variable: str, instead: str) -> httpx.Proxy:
    """A variable's proxy. Its address is in no error, because it may have a password."""
    address = os.environ[variable].strip()
    try:
        url = httpx.URL(address if "://" in address else f"http://{address}")
    except (httpx.InvalidURL, UnicodeEncodeError):
        url = httpx.URL()
    if url.scheme not in _SCHEMES or not url.host:
        todo = f"write it like http://proxy.example.org:3128, with user and password percent-encoded, or {instead}"
        raise MoergeError("not the address of an HTTP or SOCKS5 proxy", where=variable, todo=todo)
    if url.scheme.startswith("socks") and find_spec("socksio") is None:
        todo = f"pip install 'httpx[socks]', or {instead}"
        raise MoergeError("a SOCKS proxy needs the package socksio", where=variable, todo=todo)
    return httpx.Proxy(url)


def _authorities() -> ssl.SSLContext:
    """The trusted certificates: of SSL_CERT_FILE, else of SSL_CERT_DIR, else of the package certifi."""
    file, folders = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    try:
        if file:
            return ssl.create_default_context(cafile=file)
        if not folders:
            return httpx.create_ssl_context(trust_env=False)
        if any(any(Path(folder).glob("????????.[0-9]*")) for folder in folders.split(os.pathsep)):
            return ssl.create_default_context(capath=folders)
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        if error.filename is not None:
            todo = "name a file that this user can write, or unset the variable"
            raise MoergeError(f"{error.filename}: {reason}", where="SSLKEYLOGFILE", todo=todo) from error
        todo = "name a readable PEM file with the certificates of trusted authorities, or unset the variable"
        raise MoergeError(f"{file}: {reason}", where="SSL_CERT_FILE", todo=todo) from error
    todo = "run: openssl rehash FOLDER; or unset the variable"
    what = f"{folders}: no certificate with the name of its hash, such as 5ed36f99.0"
    raise MoergeError(what, where="SSL_CERT_DIR", todo=todo)
