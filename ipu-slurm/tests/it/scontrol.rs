//! Output of `scontrol`, captured from Slurm 22.05, 24.11 and 26.05.

mod allocated;
mod properties;

use std::time::Duration;

use ipu_slurm::{LicenseCounts, SlurmctldConfig, config_value};

pub(crate) const VERSIONS: [&str; 3] = ["22.05", "24.11", "26.05"];

/// Returns a captured output.
pub(crate) fn captured(version: &str, name: &str) -> String {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let path = format!("{directory}/scontrol-{version}/{name}.txt");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn licenses_are_counted() {
    for version in VERSIONS {
        let counts = LicenseCounts::parse_list(&captured(version, "licenses"));
        let pod64 = counts.iter().find(|license| license.name == "pod64").unwrap();
        assert_eq!(
            (pod64.total, pod64.used, pod64.free, pod64.reserved),
            (64, 41, 23, 0)
        );
    }
    let counts = LicenseCounts::parse_list(&captured("22.05", "licenses-reserved"));
    assert_eq!(
        (counts[1].free, counts[1].reserved, counts[1].remote),
        (59, 48, false)
    );
    let other = "LicenseName=a Total=1 Used=x Free=1 Reserved=0 Remote=no\n";
    let read = LicenseCounts::parse_list(&format!("{other}{}", captured("22.05", "licenses-reserved")));
    assert_eq!(read, counts, "an unreadable license does not hide the others");
}

#[test]
fn the_name_of_the_cluster_has_its_own_line() {
    let config = "BOOT_TIME               = 1764000000\nClusterName             = testbed\n";
    assert_eq!(config_value(config, "ClusterName"), Some("testbed"));
    assert_eq!(
        config_value("AccountingStorageClusterName = x\n", "ClusterName"),
        None
    );
}

#[test]
fn the_start_of_slurmctld_and_its_timeouts_are_read() {
    for version in VERSIONS {
        let config = SlurmctldConfig::parse(&captured(version, "config")).unwrap();
        assert!(config.started > 1_795_599_000);
        assert_eq!(config.settle_time(), Duration::from_secs(82));
    }
    let text = captured("22.05", "config").replace("1795599477", "2026-11-25T09:37:57");
    let error = SlurmctldConfig::parse(&text).unwrap_err().to_string();
    assert!(
        error.contains("BOOT_TIME") && error.contains("SLURM_TIME_FORMAT=%s"),
        "{error}"
    );
}
