# Completion of tenon's commands, options and files in bash.
_tenon() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} options
    local -A of=(
        [inspect]='--key --depth --no-stats --json --help'
        [diff]='--key --rtol --atol --ignore-dtype --help'
        [convert]='--key --dtype --rename --force --help'
        [info]='--help')
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W 'inspect diff convert info --help --version' -- "$cur")
        return
    fi
    options=${of[${COMP_WORDS[1]}]-}
    case $prev in
    --dtype) mapfile -t COMPREPLY < <(compgen -W 'f32 f64 bf16 f16' -- "$cur") ;;
    --key | --depth | --rtol | --atol | --rename) ;;
    *)
        case $cur in
        -*) mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur") ;;
        *) [ "$options" = --help ] || mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
        esac
        ;;
    esac
}
complete -o filenames -F _tenon tenon
