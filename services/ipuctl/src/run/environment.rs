//! Environment of the processes of a job: the variables of the user (inherited), of the container and of the
//! partition.

use ipu_core::PartitionId;
use ipu_core::job::EnvVar;
use ipu_core::render::IpuofEnv;

use crate::connection::SIMULATED_MARK;
use crate::env_expand::expand;
use ipu_allocator::process::PARTITION_MARKER;

/// Names and values.
pub(crate) type Variables = Vec<(String, String)>;

/// Returns the variables of a worker: those of the partition, then those of `container`. There `$(NAME)`
/// refers to variables of the partition and to earlier ones.
pub(crate) fn worker(
    ipuof: &IpuofEnv,
    mark: Option<&str>,
    container: &[EnvVar],
    partition: &PartitionId,
) -> Variables {
    let mut variables: Variables = ipuof
        .vars()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    if let Some(mark) = mark {
        variables.push((SIMULATED_MARK.to_owned(), mark.to_owned()));
    }
    add(&mut variables, container);
    variables.push((PARTITION_MARKER.to_owned(), partition.to_string()));
    variables
}

/// Returns the variables of a launcher: those of a worker without the GCD, because a launcher serves all
/// GCDs, then those of MPI, then those of the launcher.
pub(crate) fn launcher(
    ipuof: &IpuofEnv,
    mark: Option<&str>,
    container: &[EnvVar],
    partition: &PartitionId,
    mpi: Vec<(&'static str, String)>,
    launcher_env: &[EnvVar],
) -> Variables {
    let mut variables = worker(ipuof, mark, container, partition);
    variables.retain(|(name, _)| name != "IPUOF_VIPU_API_GCD_ID");
    variables.extend(mpi.into_iter().map(|(name, value)| (name.to_owned(), value)));
    add(&mut variables, launcher_env);
    variables
}

/// Adds variables in order, each with its references expanded.
fn add(variables: &mut Variables, env: &[EnvVar]) {
    for EnvVar { name, value, .. } in env {
        // A stale value would select the IPUs of another job; parsing the job warns about it.
        if IpuofEnv::selects_ipus(name) || [SIMULATED_MARK, PARTITION_MARKER].contains(&name.as_str()) {
            continue;
        }
        let value = expand(value, |name| lookup(variables, name));
        variables.retain(|(other, _)| other != name);
        variables.push((name.clone(), value));
    }
}

/// Returns the command with its references expanded.
pub(crate) fn command(words: &[String], variables: &Variables) -> Vec<String> {
    words
        .iter()
        .map(|word| expand(word, |name| lookup(variables, name)))
        .collect()
}

fn lookup(variables: &Variables, name: &str) -> Option<String> {
    variables
        .iter()
        .find(|(other, _)| other == name)
        .map(|(_, value)| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn var(name: &str, value: &str) -> EnvVar {
        serde_json::from_value(serde_json::json!({"name": name, "value": value})).unwrap()
    }

    fn of(container: &[EnvVar]) -> Variables {
        let id = PartitionId::new("p-a-0").unwrap();
        worker(
            &IpuofEnv::new("10.0.0.1", 8090, id.clone(), 3),
            None,
            container,
            &id,
        )
    }

    #[test]
    fn a_reference_expands_to_an_earlier_variable_or_one_of_the_partition() {
        let variables = of(&[
            var("A", "$(IPUOF_VIPU_API_GCD_ID)"),
            var("B", "$(A)-$(C)"),
            var("C", "late"),
        ]);
        assert_eq!(lookup(&variables, "B").unwrap(), "3-$(C)");
        assert_eq!(
            command(&["run".into(), "--gcd=$(A)".into()], &variables),
            ["run", "--gcd=3"]
        );
    }

    #[test]
    fn a_manifest_cannot_override_the_variables_of_the_partition() {
        let variables = of(&[
            var("IPUOF_VIPU_API_PARTITION_ID", "p64"),
            var("IPUOF_CONFIG_PATH", "/etc/ipuof.conf.d/pod16_a01.conf"),
            var("IPUOF_VIPU_API_TIMEOUT", "600"),
        ]);
        assert_eq!(lookup(&variables, "IPUOF_CONFIG_PATH"), None);
        assert_eq!(
            lookup(&variables, "IPUOF_VIPU_API_PARTITION_ID").unwrap(),
            "p-a-0"
        );
        assert_eq!(lookup(&variables, "IPUOF_VIPU_API_TIMEOUT").unwrap(), "600");
        let names: std::collections::BTreeSet<&str> =
            variables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), variables.len(), "names are unique: {variables:?}");
    }

    #[test]
    fn a_launcher_has_no_gcd() {
        let id = PartitionId::new("p-a-0").unwrap();
        let variables = launcher(
            &IpuofEnv::new("h", 1, id.clone(), 0),
            None,
            &[],
            &id,
            vec![("OMPI_X", "1".into())],
            &[var("OMPI_X", "2")],
        );
        assert_eq!(lookup(&variables, "IPUOF_VIPU_API_GCD_ID"), None);
        assert_eq!(lookup(&variables, "OMPI_X").unwrap(), "2");
    }
}
