//! Names of the environment variables by which Slurm and this plugin hand options on.

use crate::job_option::JobOption;

/// Prefix of the variables that Slurm derives from options of a plugin with this name.
const OPTION_PREFIX: &[u8] = b"_SLURM_SPANK_OPTION_vipu_";

/// Prefix of all variables of a job's hooks in the environment of its tasks.
const TASK_PREFIX: &[u8] = b"SLURM_SPANK_";

/// Returns whether a variable carries an option of a job: `VIPU_IPUS`, `SLURM_SPANK_VIPU_IPUS`,
/// `SLURM_SPANK__SLURM_SPANK_OPTION_vipu_ipus`. Slurm reads the last form as if it were an option of the
/// command line.
pub(crate) fn is_of_job(name: &[u8]) -> bool {
    let name = name.strip_prefix(TASK_PREFIX).unwrap_or(name);
    let is_variable = JobOption::ALL
        .iter()
        .any(|option| option.variable().to_bytes() == name);
    is_variable || name.starts_with(OPTION_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_options_are_of_a_job() {
        for name in [
            "VIPU_IPUS",
            "VIPU_RECONFIGURABLE",
            "SLURM_SPANK_VIPU_MODEL",
            "_SLURM_SPANK_OPTION_vipu_ipus",
            "SLURM_SPANK__SLURM_SPANK_OPTION_vipu_ipu_gcds",
        ] {
            assert!(is_of_job(name.as_bytes()), "{name}");
        }
        for name in [
            "VIPU_CLI_API_HOST",
            "SLURM_JOB_ID",
            "IPUOF_VIPU_API_HOST",
            "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image",
        ] {
            assert!(!is_of_job(name.as_bytes()), "{name}");
        }
    }
}
