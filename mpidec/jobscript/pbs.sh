#!/bin/bash
# The main job on 4 nodes: l2-regularized logistic regression on the breast-cancer data, 16 agents, one per rank.
#
#   mpidec jobscript pbs > job.sh; qsub job.sh                      in a checkout: qsub jobscripts/pbs.sh
#   qsub -v SCRIPT=mine.sh mine.sh                                  under another name, since it submits itself again
#   qsub -v ARGS="--solver extra --steps 5000" jobscripts/pbs.sh    another experiment; all flags: python -m mpidec.run --help
#   qsub -v PROGRAM="-m mpidec.train" jobscripts/pbs.sh             a training
#   qsub -v PROGRAM=train.py jobscripts/pbs.sh                      your own program: see docs/guide/cluster.md
#
# Expected: under a minute, and when ranks or hosts die some more; a summary table at the end of mpidec.o<job>, with error <= 1e-8; run-<job>.h5 and run-<job>.png.
# A run that does not end within the walltime is saved 90 s before it, and the script submits itself again to continue, up to
# RESTARTS times (default 100), unless the allocation made no progress, or too little to end within these restarts: a line says
# which.  A rerun job continues from its last checkpoint.
#PBS -N mpidec
#PBS -l select=4:ncpus=4:mpiprocs=4
#PBS -l walltime=00:10:00
#PBS -j oe
#PBS -r y
set -euo pipefail
cd "$PBS_O_WORKDIR"
walltime=${WALLTIME:-600}                    # seconds, as above; another one: qsub -l walltime=02:00:00 -v WALLTIME=7200
[ -e jobscripts/pbs.sh ] && script=${SCRIPT:-jobscripts/pbs.sh} || script=${SCRIPT:-job.sh}    # this file, to be submitted again

# module load python openmpi                 # only if mpi4py uses the cluster's own MPI
source "${VENV:-.venv}/bin/activate"         # an environment with mpidec, on a file system shared by all nodes
export OMP_NUM_THREADS=1

read -ra program <<<"${PROGRAM:--m mpidec.run}"
read -ra args <<<"${ARGS:-}"
file=
case "${program[*]}" in
"-m mpidec.sweep" | "-m mpidec.reproduce")  # the same command continues; so do the tasks of an array
    out=${OUT:-study}
    args+=(--out "$out") ;;
"-m mpidec."*)
    out=${OUT:-run-${PBS_JOBID%%.*}.h5}
    if [ -e "$out" ]; then args=(--resume "$out"); else args+=(--out "$out"); fi ;;
*)  out=${PROGRESS:-progress.txt}            # how far your own program is, and its end: two numbers, which it writes
    file=$out ;;
esac
before=$(python -m mpidec.restart.progress "$out")

status=0
ranks=$(wc -l <"$PBS_NODEFILE")              # one line per rank; for MPICH and Open MPI (Cray's mpiexec needs no file)
timeout --signal=USR1 --kill-after=80 $((walltime - 90)) \
    python -m mpidec.restart --times "${TIMES:-5}" ${file:+--file "$file"} -- \
    mpirun -machinefile "$PBS_NODEFILE" -n "$ranks" python "${program[@]}" "${args[@]}" || status=$?
if [ "$status" -eq 124 ]; then               # mpirun passed the signal on, and the program has saved and ended
    python -m mpidec.restart.progress "$out" "$before" "${RESTARTED:-0}" "${RESTARTS:-100}" || exit "$status"
    again="VENV=${VENV:-.venv},WALLTIME=$walltime,SCRIPT=$script,RESTARTED=$((${RESTARTED:-0} + 1)),RESTARTS=${RESTARTS:-100},PROGRAM=${program[*]}"
    case $out in
    *.h5) again="$again,OUT=$out" ;;
    *)  again="$again,OUT=$out,PROGRESS=$out,ARGS='${ARGS:-}'" ;;
    esac
    qsub -l "walltime=$walltime" -v "$again" "$script"
    exit 0
fi
if [[ $out = *.h5 && -e $out ]]; then python -m mpidec.plot "$out" -o "${out%.h5}.png" || true; fi
exit "$status"
