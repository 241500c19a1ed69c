#!/usr/bin/env bash
# Sums up what property tests wrote to KILN_TEST_REPORT: cases by family (rows) and class of dtype (columns), and totals.
#
# usage: scripts/case-report.sh [OPTION...] FILE
# FILE has a line for each family and class that ran, of fields separated by tabs:
#     family  class  cases  views  gradients  edge  special  seed
# views, gradients, edge and special count the cases with views of a larger tensor, with a backward pass, with an empty or odd
# size, and with NaN, infinities and limits among the values.
# options: requirements; the exit code is 1, and the lines `missing: ...` say why, if one is not met
#   --require N        at least N cases in all
#   --per-class N      at least N in each family and class that ran
#   --views PERCENT, --gradients PERCENT, --edge PERCENT, --special PERCENT
#                      at least this share of all cases
set -euo pipefail

usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
}
fail_usage() {
    echo "case-report.sh: $1 (--help lists the options)" >&2
    exit 2
}

file='' needs=()
while (($#)); do
    case $1 in
        --require | --per-class | --views | --gradients | --edge | --special)
            (($# > 1)) && [[ $2 =~ ^[0-9]+$ ]] || fail_usage "$1 takes a whole number"
            name=${1#--}
            needs+=(-v "need_${name//-/_}=$2")
            shift
            ;;
        -h | --help) usage; exit 0 ;;
        -*) fail_usage "unknown option $1" ;;
        *)
            [[ -z $file ]] || fail_usage "one file at a time"
            file=$1
            ;;
    esac
    shift
done
[[ -n $file ]] || fail_usage "a file is needed"
[[ -r $file ]] || fail_usage "cannot read $file"

# The input is redirected: a name with = in it would be taken for an assignment.
awk -F '\t' "${needs[@]+"${needs[@]}"}" '
    function percent(part) { return cases ? 100 * part / cases : 0 }
    function miss(what) { print "missing: " what; missing = 1 }
    function share(what, part, need) {
        if (percent(part) < need) miss(sprintf("%.1f%% of the cases %s, not %d%%", percent(part), what, need))
    }
    NF == 0 || $1 == "family" { next }
    NF != 8 || $3 !~ /^[0-9]+$/ {
        miss("line " NR " has " NF " fields, or its cases are no number: " $0)
        next
    }
    {
        if (!($1 in row)) { row[$1] = 0; families[++rows] = $1; if (length($1) > width) width = length($1) }
        if (!($2 in column)) { column[$2] = 0; classes[++columns] = $2 }
        if (!($8 in seen)) { seen[$8] = 1; seeds = seeds (seeds == "" ? "" : ", ") $8 }
        cell[$1, $2] += $3
        row[$1] += $3
        column[$2] += $3
        cases += $3; views += $4; gradients += $5; edge += $6; special += $7
    }
    END {
        if (width < 8) width = 8
        line = sprintf("%-" width "s", "cases")
        for (c = 1; c <= columns; ++c) line = line sprintf(" %9s", classes[c])
        print line sprintf(" %9s", "all")
        for (r = 1; r <= rows; ++r) {
            line = sprintf("%-" width "s", families[r])
            for (c = 1; c <= columns; ++c)
                line = line sprintf(" %9s", (families[r], classes[c]) in cell ? cell[families[r], classes[c]] : "-")
            print line sprintf(" %9d", row[families[r]])
        }
        line = sprintf("%-" width "s", "all")
        for (c = 1; c <= columns; ++c) line = line sprintf(" %9d", column[classes[c]])
        print line sprintf(" %9d", cases)
        printf "%d cases, seed %s: %.1f%% with views, %.1f%% with gradients, %.1f%% with empty or odd sizes, %.1f%% with special values\n",
            cases, seeds == "" ? "-" : seeds, percent(views), percent(gradients), percent(edge), percent(special)

        if (cases + 0 < need_require + 0) miss(cases + 0 " cases, not " need_require)
        if (need_per_class > 0)
            for (r = 1; r <= rows; ++r)
                for (c = 1; c <= columns; ++c)
                    if ((families[r], classes[c]) in cell && cell[families[r], classes[c]] < need_per_class)
                        miss(cell[families[r], classes[c]] " cases of " families[r] ", " classes[c] ", not " need_per_class)
        share("with views", views, need_views + 0)
        share("with gradients", gradients, need_gradients + 0)
        share("with empty or odd sizes", edge, need_edge + 0)
        share("with special values", special, need_special + 0)
        exit missing
    }
' <"$file"
