"""Tab completion in bash, for the installed command and for `python -m runner` alike.

Hydra's own script knows programs by the name of their file, so it completes neither. What can be typed is still asked of
Hydra (`-sc query=bash`).
"""

BASH = r"""# Samestep: eval "$(python -m runner -sc install=bash)"
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
_samestep() {
    local line="${COMP_LINE:0:COMP_POINT}" run
    case "$line" in
        samestep\ *) run=samestep; line="${line#samestep }" ;;
        *\ -m\ runner\ *) run="${line%% *} -m runner"; line="${line#* -m runner }" ;;
        *) return ;;
    esac
    line="${line#plan }"
    COMPREPLY=($(COMP_LINE="samestep $line" $run -sc query=bash 2>/dev/null))
}
complete -o nospace -o default -F _samestep samestep python python3
"""
