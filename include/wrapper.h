/* The site's own Slurm, SPANK and munge headers: bindings are generated from
 * these at each build, because their layouts differ between Slurm versions. */
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
#include <munge.h>

/* Macros that hold a cast, which bindgen passes over, as constants. */
static const uint32_t BFT_JOB_REQUEUE_HOLD = JOB_REQUEUE_HOLD;
