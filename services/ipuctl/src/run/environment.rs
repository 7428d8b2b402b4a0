//! What a process of a job finds in its environment: the user's variables (inherited), the container's, the partition's.

use ipu_core::{EnvVar, IpuofEnv, PartitionId};

use crate::connection::SIMULATED_MARK;
use crate::env_expand::expand;
use crate::process::RUN_MARKER;

/// Names and values.
pub(crate) type Variables = Vec<(String, String)>;

/// What leads to the partition cannot be overridden: a stale value would lead a job to another one's IPUs.
const FIXED: [&str; 5] = [
    "IPUOF_VIPU_API_HOST",
    "IPUOF_VIPU_API_PORT",
    "IPUOF_VIPU_API_PARTITION_ID",
    "IPUOF_VIPU_API_GCD_ID",
    SIMULATED_MARK,
];

/// The variables of a worker: `container`'s, in which `$(NAME)` refers to earlier ones and to the partition's, on top
/// of the partition's.
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
    variables.push((RUN_MARKER.to_owned(), partition.to_string()));
    variables
}

/// The variables of a launcher: a worker's without its GCD, because a launcher serves all of them; then what MPI needs,
/// then the launcher's own.
pub(crate) fn launcher(
    ipuof: &IpuofEnv,
    mark: Option<&str>,
    container: &[EnvVar],
    partition: &PartitionId,
    mpi: Vec<(&'static str, String)>,
    own: &[EnvVar],
) -> Variables {
    let mut variables = worker(ipuof, mark, container, partition);
    variables.retain(|(name, _)| name != "IPUOF_VIPU_API_GCD_ID");
    variables.extend(mpi.into_iter().map(|(name, value)| (name.to_owned(), value)));
    add(&mut variables, own);
    variables
}

fn add(variables: &mut Variables, container: &[EnvVar]) {
    for EnvVar { name, value, .. } in container {
        if FIXED.contains(&name.as_str()) || name == RUN_MARKER {
            continue;
        }
        let value = expand(value, |name| look_up(variables, name));
        variables.retain(|(known, _)| known != name);
        variables.push((name.clone(), value));
    }
}

/// A command with its references put in.
pub(crate) fn command(words: &[String], variables: &Variables) -> Vec<String> {
    words
        .iter()
        .map(|word| expand(word, |name| look_up(variables, name)))
        .collect()
}

fn look_up(variables: &Variables, name: &str) -> Option<String> {
    variables
        .iter()
        .find(|(known, _)| known == name)
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
    fn references_see_earlier_variables_and_the_partition() {
        let variables = of(&[
            var("A", "$(IPUOF_VIPU_API_GCD_ID)"),
            var("B", "$(A)-$(C)"),
            var("C", "late"),
        ]);
        assert_eq!(look_up(&variables, "B").unwrap(), "3-$(C)");
        assert_eq!(
            command(&["run".into(), "--gcd=$(A)".into()], &variables),
            ["run", "--gcd=3"]
        );
    }

    #[test]
    fn a_manifest_cannot_lead_its_workers_to_another_partition() {
        let variables = of(&[
            var("IPUOF_VIPU_API_PARTITION_ID", "p64"),
            var("IPUOF_VIPU_API_TIMEOUT", "600"),
        ]);
        assert_eq!(
            look_up(&variables, "IPUOF_VIPU_API_PARTITION_ID").unwrap(),
            "p-a-0"
        );
        assert_eq!(look_up(&variables, "IPUOF_VIPU_API_TIMEOUT").unwrap(), "600");
        let names: std::collections::BTreeSet<&str> =
            variables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), variables.len(), "no name twice: {variables:?}");
    }

    #[test]
    fn a_launcher_belongs_to_no_gcd() {
        let id = PartitionId::new("p-a-0").unwrap();
        let variables = launcher(
            &IpuofEnv::new("h", 1, id.clone(), 0),
            None,
            &[],
            &id,
            vec![("OMPI_X", "1".into())],
            &[var("OMPI_X", "2")],
        );
        assert_eq!(look_up(&variables, "IPUOF_VIPU_API_GCD_ID"), None);
        assert_eq!(look_up(&variables, "OMPI_X").unwrap(), "2");
    }
}
