/* The site's own Slurm, SPANK and munge headers: bindings are generated from
 * these at each build, because their layouts differ between Slurm versions. */
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
#include <munge.h>

/* Flags that the headers compute with macros, which bindings can't show. */
static const uint32_t BFT_JOB_COMPLETING = JOB_COMPLETING;
static const uint32_t BFT_PRIVATE_DATA_JOBS = PRIVATE_DATA_JOBS;
static const uint32_t BFT_PRIVATE_DATA_NODES = PRIVATE_DATA_NODES;
static const uint32_t BFT_JOB_REQUEUE_HOLD = JOB_REQUEUE_HOLD;
static const uint32_t BFT_NODE_STATE_COMPLETING = NODE_STATE_COMPLETING;
static const uint32_t BFT_NODE_STATE_PLANNED = NODE_STATE_PLANNED;
static const uint16_t BFT_PARTITION_UP = PARTITION_UP;
static const uint32_t BFT_PRIVATE_DATA_USAGE = PRIVATE_DATA_USAGE;
static const uint16_t BFT_SHARED_FORCE = SHARED_FORCE;
static const uint16_t BFT_SHOW_ALL = SHOW_ALL;
static const uint16_t BFT_SHOW_MIXED = SHOW_MIXED;
