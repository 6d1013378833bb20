"""Completions for bash, zsh, and fish: commands, flags, and values that are keywords or paths.

They are generated from the parsers, so they complete exactly the flags that exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from deploy.packages import NAME
from deploy.packages.program import Command, Flag, commands


def bash() -> str:
    """Return the function that bash-completion loads by the command's name. It doesn't depend on bash-completion."""
    lines = [f"# bash completion for {NAME}, generated from its parsers", "_azure_scheduled_events_exporter() {"]
    lines += [
        '    local cur=${COMP_WORDS[COMP_CWORD]} prev="" command="" action="" word words="" paths="" index',
        "    COMPREPLY=()",
        # Readline splits --flag=value at the equals sign.
        '    if [[ $cur == "=" ]]; then cur="" prev=${COMP_WORDS[COMP_CWORD-1]}',
        "    elif ((COMP_CWORD >= 2)) && [[ ${COMP_WORDS[COMP_CWORD-1]} == '=' ]]; then",
        "        prev=${COMP_WORDS[COMP_CWORD-2]}",
        "    else prev=${COMP_WORDS[COMP_CWORD-1]}; fi",
        "    for ((index = 1; index < COMP_CWORD; index++)); do",
        "        word=${COMP_WORDS[index]}",
        "        [[ $word == -* ]] && continue",
        "        if [[ -z $command ]]; then command=$word; elif [[ -z $action ]]; then action=$word; fi",
        "    done",
        "    case $command in",
        f'    "") words="--help --version {" ".join(command.name for command in commands())}" ;;',
    ]
    for command in commands():
        lines += [f"    {command.name})", *_bash_command(command), "        ;;"]
    lines += [
        "    esac",
        '    if [[ $paths == yes ]]; then mapfile -t COMPREPLY < <(compgen -f -- "$cur"); compopt -o filenames',
        '    else mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur"); fi',
        "}",
        f"complete -F _azure_scheduled_events_exporter {NAME}",
    ]
    return "\n".join(lines) + "\n"


def _bash_command(command: Command) -> Iterator[str]:
    if command.actions:
        yield "        case $action in"
        yield f'        "") words="--help {" ".join(action.name for action in command.actions)}" ;;'
        for action in command.actions:
            yield f"        {action.name})"
            yield from (f"    {line}" for line in _bash_command(action))
            yield "            ;;"
        yield "        esac"
        return
    yield "        case $prev in"
    for flag in command.flags:
        if flag.words:
            yield f'        {flag.spelling}) words="{" ".join(flag.words)}" ;;'
        elif flag.path:
            yield f"        {flag.spelling}) paths=yes ;;"
        elif flag.value:
            yield f"        {flag.spelling}) ;;"
    words = " ".join(flag.spelling for flag in command.flags)
    # Without a flag, a command with arguments completes paths.
    other = (
        f'if [[ $cur == -* ]]; then words="{words}"; else paths=yes; fi' if command.arguments else f'words="{words}"'
    )
    yield f"        *) {other} ;;"
    yield "        esac"


def zsh() -> str:
    """Return the function that zsh's compinit loads."""
    lines = [f"#compdef {NAME}", f"# zsh completion for {NAME}, generated from its parsers", ""]
    for command in commands():
        if command.actions:
            lines += [f"_{NAME}_{command.name}() {{", *_zsh_choice(f"{NAME}_{command.name}", command.actions), "}", ""]
            for action in command.actions:
                lines += _zsh_function(f"_{NAME}_{command.name}_{action.name}", action)
        else:
            lines += _zsh_function(f"_{NAME}_{command.name}", command)
    lines += [f"_{NAME}() {{", *_zsh_choice(NAME, commands(), "'--version[show the version]' "), "}", ""]
    lines += [f'_{NAME} "$@"']
    return "\n".join(lines) + "\n"


def _zsh_choice(prefix: str, choice: tuple[Command, ...], further: str = "") -> Iterator[str]:
    yield "    local curcontext=$curcontext state line"
    yield "    typeset -A opt_args"
    yield f"    _arguments -C '(- *)--help[show help]' {further}'1: :->which' '*:: :->rest'"
    yield "    case $state in"
    yield "    which)"
    yield "        local -a which=("
    yield from (f"            '{each.name}:{_zsh_text(each.summary)}'" for each in choice)
    yield "        )"
    yield "        _describe -t commands command which"
    yield "        ;;"
    yield "    rest)"
    yield "        case $line[1] in"
    yield from (f"        {each.name}) _{prefix}_{each.name} ;;" for each in choice)
    yield "        esac"
    yield "        ;;"
    yield "    esac"


def _zsh_function(name: str, command: Command) -> Iterator[str]:
    yield f"{name}() {{"
    yield "    _arguments -s \\"
    for flag in command.flags:
        yield f"        {_zsh_flag(flag)} \\"
    yield "        '*: :_files'" if command.arguments else "        && return 0"
    yield "}"
    yield ""


def _zsh_flag(flag: Flag) -> str:
    star = "*" if flag.repeated else ""
    if not flag.value:
        return f"'{star}{flag.spelling}[{_zsh_text(flag.help)}]'"
    after = f"({' '.join(flag.words)})" if flag.words else "_files" if flag.path else " "
    colons = "::" if flag.optional else ":"
    return f"'{star}{flag.spelling}=[{_zsh_text(flag.help)}]{colons}{_zsh_text(flag.value.lower())}:{after}'"


def _zsh_text(text: str) -> str:
    """Return text escaped for a specification of `_arguments`, inside single quotes and brackets."""
    shown = brief(text)
    for special in "[]:":
        shown = shown.replace(special, f"\\{special}")
    return shown.replace("'", "'\\''").replace("`", "")


def fish() -> str:
    """Return the file that fish loads by the command's name."""
    names = " ".join(command.name for command in commands())
    lines = [f"# fish completion for {NAME}, generated from its parsers", f"complete -c {NAME} -f"]
    none = f"not __fish_seen_subcommand_from {names}"
    lines += [f"complete -c {NAME} -n '{none}' -l version -d 'show the version'"]
    for command in commands():
        lines.append(f"complete -c {NAME} -n '{none}' -a {command.name} -d '{_fish_text(command.summary)}'")
    for command in commands():
        seen = f"__fish_seen_subcommand_from {command.name}"
        actions = " ".join(action.name for action in command.actions)
        for action in command.actions:
            lines.append(
                f"complete -c {NAME} -n '{seen}; and not __fish_seen_subcommand_from {actions}' "
                f"-a {action.name} -d '{_fish_text(action.summary)}'"
            )
        if command.arguments:
            lines.append(f"complete -c {NAME} -n '{seen}' -F")
        lines += [_fish_flag(seen, flag) for flag in command.flags]
        for action in command.actions:
            both = f"{seen}; and __fish_seen_subcommand_from {action.name}"
            lines += [_fish_flag(both, flag) for flag in action.flags if flag.spelling != "--help"]
    return "\n".join(lines) + "\n"


def _fish_flag(condition: str, flag: Flag) -> str:
    words = ["complete", "-c", NAME, "-n", f"'{condition}'", "-l", flag.spelling.removeprefix("--")]
    if flag.words:
        words += ["-x", "-a", f"'{' '.join(flag.words)}'"]
    elif flag.path:
        words += ["-r", "-F"]
    elif flag.value and not flag.optional:
        words += ["-x"]
    return " ".join([*words, "-d", f"'{_fish_text(flag.help)}'"])


def _fish_text(text: str) -> str:
    return brief(text).replace("\\", "\\\\").replace("'", "\\'")


def brief(text: str) -> str:
    """Return the first sentence of a help text, without its full stop and its defaults."""
    first = text.partition(". ")[0].partition(" Default:")[0]
    return " ".join(first.split()).rstrip(".")
