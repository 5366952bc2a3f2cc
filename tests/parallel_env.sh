# Sourced by the scripts that start several processes, with the module's path in $TN_MPI_MODULE: how mpirun
# runs here, where there are fewer cores than ranks, and perhaps no user but root.
# shellcheck shell=bash
skip() { echo "$(basename "$0"): skipped: $1"; exit 77; }
[ -n "$TN_MPI_MODULE" ] || skip 'built without MPI'
command -v mpirun >/dev/null || skip 'there is no mpirun'
export TN_MPI_MODULE TN_NUM_THREADS=1 OMP_NUM_THREADS=1
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # Open MPI keeps memory to the end
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
