#!/bin/bash
# The main job on 4 nodes: l2-regularized logistic regression on the breast-cancer data, 16 agents, one per task.
#
#   mpidec jobscript slurm > job.sh; sbatch job.sh                  in a checkout: sbatch jobscripts/slurm.sh
#   ARGS="--solver extra --steps 5000" sbatch jobscripts/slurm.sh   another experiment; all flags: python -m mpidec.run --help
#   PROGRAM="-m mpidec.train" ARGS="--epochs 100" sbatch jobscripts/slurm.sh      a training
#   PROGRAM=train.py sbatch jobscripts/slurm.sh                     your own program: see docs/guide/cluster.md
#   PROGRAM="-m mpidec.sweep" ARGS="--vary solver.name=extra,dgd --seeds 8" sbatch --array=1-4 jobscripts/slurm.sh
#   LAUNCH=srun sbatch jobscripts/slurm.sh                          another launcher: see jobscripts/README.md
#
# Expected: under a minute, and when ranks or hosts die some more; a summary table at the end of mpidec-<job>.out, with error <= 1e-8; run-<job>.h5 and run-<job>.png.
# A run that does not end within the time limit is saved 90 s before it, and the job requeues itself and continues, up to
# RESTARTS times (default 100), unless the allocation made no progress, or too little to end within these restarts: a line says
# which.  A job that Slurm requeues continues from its last checkpoint.
#SBATCH --job-name=mpidec
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=1
#SBATCH --time=00:10:00
#SBATCH --signal=B:USR1@90
#SBATCH --output=mpidec-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --no-kill
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"

# module load python openmpi                 # only if mpi4py uses the cluster's own MPI
source "${VENV:-.venv}/bin/activate"         # an environment with mpidec, on a file system shared by all nodes
export OMP_NUM_THREADS=1

read -ra launch <<<"${LAUNCH:-mpirun}"       # mpirun, srun, srun --mpi=pmi2 or srun --mpi=pmix: that of mpi4py's library
read -ra program <<<"${PROGRAM:--m mpidec.run}"
read -ra args <<<"${ARGS:-}"
file=
case "${program[*]}" in
"-m mpidec.sweep" | "-m mpidec.reproduce")  # the same command continues; so do the tasks of an array
    out=${OUT:-study}
    args+=(--out "$out") ;;
"-m mpidec."*)
    out=run-$SLURM_JOB_ID.h5
    if [ -e "$out" ]; then args=(--resume "$out"); else args+=(--out "$out"); fi ;;
*)  out=${PROGRESS:-progress.txt}            # how far your own program is, and its end: two numbers, which it writes
    file=$out ;;
esac

status=130 again= run=                       # the launcher passes the signal on: the program saves and ends
trap 'again=yes; if [ "$run" ]; then kill -USR1 "$run" 2>/dev/null || true; fi' USR1
before=$(python -m mpidec.restart.progress "$out")
if [ -z "$again" ]; then
    python -m mpidec.restart --times "${TIMES:-5}" ${file:+--file "$file"} -- \
        "${launch[@]}" -n "$SLURM_NTASKS" python "${program[@]}" "${args[@]}" &
    run=$!
    wait "$run" && status=0 || status=$?
fi
if [ "$again" ]; then                        # the signal has ended the first wait
    if [ "$run" ]; then wait "$run" && status=0 || status=$?; fi
    case $status in
    0 | 3 | 4) ;;                            # it has ended by itself meanwhile
    *)  python -m mpidec.restart.progress "$out" "$before" "${SLURM_RESTART_COUNT:-0}" "${RESTARTS:-100}" || exit "$status"
        scontrol requeue "$SLURM_JOB_ID"
        exit 0 ;;
    esac
fi
if [[ $out = *.h5 && -e $out ]]; then python -m mpidec.plot "$out" -o "${out%.h5}.png" || true; fi
exit "$status"
