# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""From bare drives to a pool over NVMe-oF: exports drives from a target, connects hosts, proves the result.

One YAML file says what there is to be, on the target and on its hosts (docs/nvmf.md). Every verb brings its machine to
what the file says, a second run changes nothing, and one that fails leaves all as it was.

  nvmf-setup plan pool.yaml                  what a target lacks, as commands; with --host, what a host connects
  nvmf-setup target apply pool.yaml          on the target
  nvmf-setup host connect pool.yaml --host decode1
  nvmf-setup pool pool.yaml --host decode1   on the host: format, open, print the line for LMCache
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvstore.errors import ConfigError, DeviceError, KvStoreError
from kvstore.nvmf import check
from kvstore.nvmf.host import CONNECT_S, LocalHost
from kvstore.nvmf.persist import (
    HOST_UNIT,
    TARGET_UNIT,
    Persistence,
    Wanted,
    absent_files,
    default_program,
    host_files,
    target_files,
)
from kvstore.nvmf.pool import HostPool, line_for_lmcache
from kvstore.nvmf.record import only_one, state_folder
from kvstore.nvmf.signals import terminable
from kvstore.nvmf.spec import Spec, read_spec
from kvstore.nvmf.target import Target
from kvstore.sizes import parse_size

__all__ = ["Machine", "main"]

_SIZES = ("block_bytes", "region_bytes", "min_block_bytes")
EXIT_OK, EXIT_BAD, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_MENDS = {
    errno.EACCES: "run it as root",
    errno.EPERM: "run it as root",
    errno.ENOSPC: "make room there",
    errno.EROFS: "another folder: KVSTORE_STATE_DIR, or --root",
}

_EXITS = """exit status:
  0  done, or as the file says
  1  not as the file says (status), or failed: the message says the mend
  2  wrong arguments, or a file that says what cannot be"""


@dataclass
class Machine:
    """What this machine is made of, for the verbs: how a file becomes a target and a host here."""

    target: Callable[[Spec], Target] = Target
    host: Callable[[Spec, str], LocalHost] = LocalHost
    pool: Callable[[LocalHost], HostPool] = HostPool
    persistence: Callable[[Wanted, Path], Persistence] = Persistence
    lock: Callable[[], Path] = lambda: state_folder() / "nvmf.lock"
    checked: Callable[[], check.Machine] = check.Machine


@dataclass
class _Run:
    """One call: its arguments, and what it has to say."""

    options: argparse.Namespace
    machine: Machine
    spec: Spec = field(default_factory=lambda: Spec("", (), (), ()))

    def say(self, lines: Sequence[str], **report: Any) -> None:
        """Lines for people, the report for programs."""
        if self.options.json:
            _print(report)
        else:
            for line in lines:
                print(line)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Where something may be changed, no other run does."""
        with only_one(self.machine.lock()) if self.options.changes and not self.options.dry_run else nullcontext():
            yield

    def tell(self, line: str) -> None:
        """For people, beside what is said: on standard error."""
        if not self.options.json:
            print(line, file=sys.stderr)

    @property
    def target(self) -> Target:
        return self.machine.target(self.spec)

    @property
    def host(self) -> LocalHost:
        return self.machine.host(self.spec, self.options.host)


# ---- verbs ----


def _plan(run: _Run) -> int:
    return _plan_host(run) if run.options.host else _plan_target(run)


def _plan_target(run: _Run) -> int:
    target = run.target
    commands = [step.command(target.root) for step in target.plan(run.options.force)]
    # Where nothing is to be done they are loaded, or built in, which is not told.
    modprobes = target.modprobes() if commands else []
    lines = [*modprobes, *commands] or ["# nothing: all is as the file says"]
    run.say(lines, changes=bool(commands), modprobes=modprobes, commands=commands)
    return EXIT_OK


def _plan_host(run: _Run) -> int:
    host = run.host
    lines, listed = [], []
    for state in host.states():
        commands = host.commands(state)
        if state.controller is not None and not state.is_as_wanted:
            lines.append(f"# {state.path.name}: {state}")
        lines += commands
        if state.controller is None:
            lines.append(f"# the same by nvme-cli: {state.path.command()}")
        listed.append(
            {"path": state.path.name, "state": str(state), "commands": commands, "nvme_cli": state.path.command()}
        )
    changes = any(one["commands"] for one in listed)
    modprobes = host.modprobes() if changes else []
    lines = [*modprobes, *lines] or ["# nothing: all is as the file says"]
    run.say(lines, changes=changes, modprobes=modprobes, paths=listed)
    return EXIT_OK


def _target_apply(run: _Run) -> int:
    if run.options.dry_run:
        return _plan_target(run)
    target = run.target
    done = [step.command(target.root) for step in target.apply(run.options.force)]
    said = f"{len(done)} steps done: the target is as {run.spec.path} says" if done else "nothing to do"
    run.say([said], changed=bool(done), commands=done)
    return EXIT_OK


def _target_remove(run: _Run) -> int:
    target, is_dry = run.target, run.options.dry_run
    done = [step.command(target.root) for step in (target.removal() if is_dry else target.remove(run.options.force))]
    said = done if is_dry else [f"{len(done)} steps done: what nvmf-setup made is gone"]
    others = target.others()
    if others and not done:
        run.tell(
            f"there: {', '.join(others)}; by {target.record_path} not made by nvmf-setup, so left alone. If it was, "
            "then with another KVSTORE_STATE_DIR"
        )
    run.say(said if done else ["nothing to do"], changed=bool(done) and not is_dry, commands=done, others=others)
    return EXIT_OK


def _target_status(run: _Run) -> int:
    parts = [{"name": name, "state": state, "as_wanted": good} for name, state, good in run.target.status()]
    mend = f"nvmf-setup plan {run.spec.path} tells what differs, nvmf-setup target apply makes it so"
    return _status(run, parts, mend)


def _host_connect(run: _Run) -> int:
    if run.options.dry_run:
        return _plan_host(run)
    done = run.host.connect(run.options.timeout)
    run.say(done or ["nothing to do: every path is connected as the file says"], changed=bool(done), done=done)
    return EXIT_OK


def _host_disconnect(run: _Run) -> int:
    host, is_dry = run.host, run.options.dry_run
    if is_dry:
        names = [one.name for one in host.disconnection(run.options.force)]
        lines = [f"printf 1 > /sys/class/nvme/{name}/delete_controller" for name in names]
    else:
        names = host.disconnect(run.options.force, run.options.timeout)
        lines = [f"disconnected {name}" for name in names]
    run.say(lines or ["nothing to do"], changed=bool(names) and not is_dry, controllers=names)
    return EXIT_OK


def _host_status(run: _Run) -> int:
    host = run.host
    parts: list[dict[str, Any]] = []
    for state in host.states():
        one = {"name": state.path.name, "state": str(state), "as_wanted": state.is_as_wanted}
        if state.controller is not None:
            controller = state.controller
            one |= {
                "controller": controller.name,
                "io_queues": controller.io_queues,
                "queue_size": controller.queue_size,
                "keep_alive_s": controller.keep_alive_s,
                "reconnect_delay_s": controller.reconnect_delay_s,
                "controller_loss_s": controller.controller_loss_s,
                "fast_io_fail_s": controller.fast_io_fail_s,
            }
            one["detail"] = (
                f"{controller.io_queues} queues of {controller.queue_size}, keep-alive {controller.keep_alive_s} s; "
                f"when lost, reconnects every {controller.reconnect_delay_s} s, fails requests after "
                f"{controller.fast_io_fail_s} s, gives up after {controller.controller_loss_s} s"
            )
        parts.append(one)
    for namespace, nqn, found in host.namespaces():
        nodes = [device.node for device in found]
        is_right = len(found) == 1 and found[0].subsystem == nqn and namespace.uuid in ("", found[0].uuid)
        parts.append(
            {
                "name": f"namespace {namespace.nsid} of {nqn}",
                "state": ", ".join(nodes) or "absent",
                "as_wanted": is_right,
                "detail": f"NGUID {namespace.nguid}, UUID {namespace.uuid or 'any'}",
                "nguid": namespace.nguid,
                "uuid": namespace.uuid,
                "devices": nodes,
            }
        )
    mend = f"nvmf-setup plan {run.spec.path} --host {host.name} tells what differs, nvmf-setup host connect makes it so"
    return _status(run, parts, mend)


def _persist_target(run: _Run) -> int:
    return _persist(run, lambda: target_files(run.spec, run.options.program or default_program()), TARGET_UNIT)


def _persist_host(run: _Run) -> int:
    options = run.options
    host = run.spec.host(options.host)
    # Without its names nvme-cli 2.3 looks for those of /etc/nvme/hostnqn in the file, finds none, and says nothing.
    command = "" if host.key_file else f"nvme connect-all --hostnqn={shlex.quote(host.nqn)} --hostid={host.host_id}"
    return _persist(
        run, lambda: host_files(run.spec, options.host, options.program or default_program()), HOST_UNIT, command
    )


def _persist(run: _Run, wanted: Callable[[], Wanted], unit: str, by_nvme_cli: str = "") -> int:
    options = run.options
    files = absent_files(unit, Path(options.root)) if options.remove else wanted()
    persistence = run.machine.persistence(files, Path(options.root))
    if options.dry_run:
        changed = persistence.plan(options.force)
        texts = {path: files[path] for path in changed}
        lines = [
            line for path, text in texts.items() for line in ([f"rm {path}"] if text is None else [f"# {path}", text])
        ]
    else:
        changed = persistence.write(options.force)
        lines = [f"{'removed' if files[path] is None else 'written'} {path}" for path in changed]
    root = [] if options.root == "/" else [f"--root={options.root}"]
    enable = shlex.join(["systemctl", *root, "enable", *([] if root else ["--now"]), unit])
    written = bool(changed) and not options.dry_run
    after = {} if options.remove else {"enable": enable, "nvme_cli": by_nvme_cli}
    run.say(lines or ["nothing to do"], changed=written, files={path: files[path] for path in changed}, **after)
    if written and not options.remove:
        run.tell(f"To have it at boot: {enable}")
        if by_nvme_cli:
            run.tell(f"The same by nvme-cli, instead of the unit: {by_nvme_cli}")
    return EXIT_OK


def _pool(run: _Run) -> int:
    pool, options = run.machine.pool(run.host), run.options
    sizes = {name: getattr(options, name) for name in _SIZES}
    if options.dry_run:
        plan, uuid = pool.plan(options.force), None
    else:
        plan, uuid = pool.make(options.force, **sizes)
    shared = {"mode": "shared", "engine": options.engine} if options.engine else {}
    line = line_for_lmcache(plan.paths, **shared)
    for one in plan.found:
        run.tell(f"namespace {one.namespace.nsid}: {one.path} ({one.device.node}), {one.holds or 'nothing on it'}")
    would = "would be formatted" if options.dry_run else "formatted"
    run.tell(f"{would if plan.is_blank else 'the pool is there'}{f': {uuid}' if uuid else ''}. The line for LMCache:")
    owner = plan.owner
    if owner is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(owner["opened_seconds"]))
        run.tell(
            f"not closed: opened by host {owner['host']} at {since} (epoch {owner['epoch']}). Where that still runs, "
            "whoever opens the pool from another host takes it over, and that one stops: see docs/nvmf.md"
        )
    changed = plan.is_blank and not options.dry_run
    run.say([line], changed=changed, pool_uuid=uuid, paths=plan.paths, line=line, owner=owner)
    return EXIT_OK


def _status(run: _Run, parts: Sequence[dict[str, Any]], mend: str) -> int:
    is_right = all(part["as_wanted"] for part in parts)
    width = max((len(part["name"]) for part in parts), default=0)
    lines = []
    for part in parts:
        lines.append(f"{'ok  ' if part['as_wanted'] else 'fail'}  {part['name'].ljust(width)}  {part['state']}")
        if "detail" in part:
            lines.append(f"{'':{width + 8}}{part['detail']}")
    run.say(lines, as_wanted=is_right, parts=list(parts), **({} if is_right else {"mend": mend}))
    if not is_right:
        run.tell(f"mend: {mend}")
    return EXIT_OK if is_right else EXIT_BAD


def _check(run: _Run) -> int:
    options, spec = run.options, run.spec if run.options.file else None
    machine = run.machine.checked()
    if options.dry_run:
        lines = check.plan(spec, options.host, peer=options.peer, machine=machine)
        run.say(lines, would=lines)
        return EXIT_OK
    found = check.findings(spec, options.host, peer=options.peer, machine=machine)
    failed = any(one.verdict == "fail" for one in found)
    is_ok = all(one.verdict == "ok" for one in found)  # what nobody could tell is no failure, and not ok either
    run.say(list(check.report(found)), ok=is_ok, failed=failed, findings=[asdict(one) for one in found])
    return EXIT_BAD if failed else EXIT_OK


_LOOKING = (_plan, _target_status, _host_status, _check)


# ---- the command line ----


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _parser(None, "nvmf-setup", str(__doc__))
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    plan = _verb(verbs, "plan", _plan, "what would change, as commands; changes nothing")
    plan.add_argument("--host", metavar="NAME", help="of this host, instead of the target")
    _force(plan, "DEVICE", "export this drive though it holds data")

    target = _group(verbs, "target", "this machine as the target")
    _force(
        _verb(target, "apply", _target_apply, "make it what the file says"),
        "DEVICE",
        "export it though it holds data; or NQN: exchange its drives though hosts are connected",
    )
    _force(
        _verb(target, "remove", _target_remove, "remove what nvmf-setup made, and nothing else", needs_file=False),
        "NQN",
        "of a subsystem, though hosts are connected",
    )
    _verb(target, "status", _target_status, "whether it is as the file says")

    host = _group(verbs, "host", "this machine as a host")
    connect = _verb(host, "connect", _host_connect, "connect every path of the file")
    disconnect = _verb(host, "disconnect", _host_disconnect, "disconnect the file's own connections")
    status = _verb(host, "status", _host_status, "whether every path and namespace is as the file says")
    _force(disconnect, "NGUID", "disconnect though that namespace is in use; or its path under /dev/disk/by-id")
    for verb in (connect, disconnect, status):
        verb.add_argument("--host", metavar="NAME", required=True, help="as the file calls this machine")
    for verb in (connect, disconnect):
        verb.add_argument("--timeout", type=_seconds, default=CONNECT_S, metavar="SECONDS", help="for each step (30)")

    persist = _group(verbs, "persist", "files that bring it up at boot: a systemd unit, and the same for other tools")
    for name, verb_run in (("target", _persist_target), ("host", _persist_host)):
        verb = _verb(persist, name, verb_run, f"of a {name}")
        verb.add_argument("--root", default="/", metavar="FOLDER", help="of an image, instead of this machine's /")
        verb.add_argument("--program", metavar="COMMAND", help="how the unit calls nvmf-setup; as it was called now")
        verb.add_argument("--remove", action="store_true", help="remove what was written, instead")
        _force(verb, "PATH", "overwrite or remove a file that somebody else wrote or changed")
        if name == "host":
            verb.add_argument("--host", metavar="NAME", required=True, help="as the file calls the machine")

    pool = _verb(verbs, "pool", _pool, "find the namespaces, format and open the pool, print the line for LMCache")
    pool.add_argument("--host", metavar="NAME", required=True, help="as the file calls this machine")
    for name in _SIZES:
        pool.add_argument(f"--{name.replace('_', '-')}", metavar="SIZE", type=_size, help="as of kvstore format")
    pool.add_argument("--engine", metavar="URL", default="", help="many hosts: etcd://host:port,…, see docs/sharing.md")
    _force(pool, "NGUID", "format that namespace though it holds data; or its path under /dev/disk/by-id")
    ready = _verb(
        verbs, "check", _check, "is this machine ready for RoCE v2: findings with their mends", needs_file=None
    )
    ready.add_argument("--host", metavar="NAME", help="as the file calls this machine; without: by its addresses")
    ready.add_argument("--peer", metavar="ADDRESS", help="of the other end, to measure the way there")
    return parser


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:  # nan is in no range, and would be waited for for ever
        raise argparse.ArgumentTypeError(f"{text} is no time: a number of seconds above 0, 30 for instance")
    return seconds


def _parser(add: Any, name: str, text: str) -> argparse.ArgumentParser:
    shape: dict[str, Any] = {"epilog": _EXITS, "formatter_class": argparse.RawDescriptionHelpFormatter}
    if add is None:
        return argparse.ArgumentParser(prog=name, description=text, **shape)
    made: argparse.ArgumentParser = add.add_parser(name, help=text, description=text, **shape)
    return made


def _group(verbs: Any, name: str, text: str) -> Any:
    return _parser(verbs, name, text).add_subparsers(metavar="VERB", required=True)


def _verb(
    verbs: Any, name: str, run: Callable[[_Run], int], text: str, *, needs_file: bool | None = True
) -> argparse.ArgumentParser:
    """``needs_file`` None: it is read where it is given."""
    verb = _parser(verbs, name, text)
    verb.add_argument("file", metavar="FILE", nargs=None if needs_file else "?", help="the YAML file, see docs/nvmf.md")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.add_argument("--dry-run", action="store_true", help="change nothing, say what would be")
    verb.set_defaults(run=run, force=[], needs_file=needs_file, changes=run not in _LOOKING)
    return verb


def _force(verb: argparse.ArgumentParser, metavar: str, text: str) -> None:
    verb.add_argument("--force", action="append", default=[], metavar=metavar, help=f"{text}; once for each")


def main(arguments: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Run one verb.

    Parameters
    ----------
    arguments : without the program's name; those of the process by default.
    machine : this one by default.

    Returns
    -------
    the exit status, see ``nvmf-setup --help``.
    """
    # `nvmf-setup … >&-`: there is none, and a run must not end half-way for want of it.
    sys.stdout = sys.stdout or open(os.devnull, "w")
    options = build_parser().parse_args(arguments)
    run = _Run(options, machine or Machine())
    status = EXIT_USAGE
    try:
        if options.needs_file or (options.needs_file is None and options.file):
            run.spec = read_spec(options.file)
        if getattr(options, "host", None):
            if not options.file:
                raise ConfigError(f"--host {options.host} is a name of the file: name that, too")
            run.spec.host(options.host)
        status = EXIT_BAD
        with terminable(), run.alone():
            status = options.run(run)
        sys.stdout.flush()
    except KvStoreError as error:
        _fail(str(error), error.code, error.errno, as_json=options.json)
    except BrokenPipeError:
        sys.stdout = None  # `nvmf-setup plan … | head`: the interpreter's own flush would fail again
    except OSError as error:
        mend = _MENDS.get(error.errno or 0, "see dmesg")
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror}: {mend}", DeviceError.code, error.errno, as_json=options.json)
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    return status


def _print(report: Any) -> None:
    # Not kvstore.cli's: that brings all of kvbench along, a second and more on a small machine.
    print(json.dumps(report, indent=2))


def _fail(text: str, code: str, number: int | None, *, as_json: bool) -> None:
    """One sentence on standard error; for programs a document on standard output too."""
    with contextlib.suppress(OSError):
        print(f"error: {text}", file=sys.stderr, flush=True)
        if as_json:
            _print({"error": {"code": code, "errno": number, "message": text}})
