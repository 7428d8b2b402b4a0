//! The eight IPUJobs of Graphcore's guides: their partitions and our warnings.

use ipu_core::job::{JobKind, Limits, ParsedJob};
use ipu_k8s::crd::{Document, Manifest, read_manifests};

struct Example {
    file: &'static str,
    text: &'static str,
    instances: u32,
    /// IPUs, GCDs, replicas of each instance.
    partition: (u32, u32, u32),
    shape: &'static str,
    /// Fields with a warning.
    warnings: &'static [&'static str],
    /// Other documents of the file.
    skipped: &'static [&'static str],
}

macro_rules! example {
    ($file:literal, $instances:literal x $partition:expr, $shape:literal, $warnings:expr, $skipped:expr) => {
        Example {
            file: $file,
            text: include_str!(concat!("../data/guides/", $file)),
            instances: $instances,
            partition: $partition,
            shape: $shape,
            warnings: &$warnings,
            skipped: &$skipped,
        }
    };
}

const EXAMPLES: [Example; 8] = [
    example!("vipu-training.yaml", 1 x (1, 1, 1), "launcher mpirun", ["spec.workerPerJobInstance"], []),
    example!("vipu-interactive.yaml", 1 x (2, 1, 1), "interactive 3600", [], []),
    example!("vipu-inference.yaml", 1 x (1, 1, 1), "workers", [], []),
    example!("vipu-nfs.yaml", 1 x (1, 1, 1), "launcher mpirun", [], ["PersistentVolume nfs-shared-storage", "PersistentVolumeClaim nfs-pvc"]),
    example!("alpha-training.yaml", 1 x (4, 1, 4), "launcher mpirun", ["spec.modelReplicas"], []),
    example!("alpha-interactive.yaml", 1 x (4, 1, 4), "interactive 3600", ["spec.modelReplicas"], []),
    example!("alpha-nfs.yaml", 1 x (4, 1, 4), "launcher mpirun", ["spec.modelReplicas"], ["PersistentVolume nfs-shared-storage", "PersistentVolumeClaim nfs-pvc"]),
    example!("rdma-mnist.yaml", 1 x (1, 1, 1), "workers", [], []),
];

#[test]
fn every_ipujob_of_the_seeds_requests_its_documented_partitions() {
    for example in EXAMPLES {
        let (parsed, _) = parse(&example);
        let spec = &parsed.spec;
        let partition = spec.partition();
        assert_eq!(spec.instances(), example.instances, "{}", example.file);
        let partition_sizes = (partition.size.get(), partition.gcds, partition.replicas);
        assert_eq!(partition_sizes, example.partition, "{}", example.file);
        let shape = match spec.shape() {
            JobKind::Workers => "workers".to_owned(),
            JobKind::Launcher { command } => format!("launcher {}", command[0]),
            JobKind::Interactive { ttl } => format!("interactive {}", ttl.as_secs()),
        };
        assert_eq!(shape, example.shape, "{}", example.file);
    }
}

#[test]
fn the_ipujobs_of_the_seeds_have_the_expected_warnings() {
    for example in EXAMPLES {
        let (parsed, skipped) = parse(&example);
        let warned: Vec<_> = parsed
            .warnings
            .iter()
            .map(|warning| warning.field.as_str())
            .collect();
        assert_eq!(warned, example.warnings, "{}", example.file);
        assert_eq!(skipped, example.skipped, "{}", example.file);
    }
}

fn parse(example: &Example) -> (ParsedJob, Vec<String>) {
    let (mut manifest, skipped) = read(example.text);
    manifest.job.metadata.uid = Some("beb81bbe".into());
    match manifest.parse(&Limits::default()) {
        Ok(parsed) => (parsed, skipped),
        Err(violations) => panic!("{}: {violations:#?}", example.file),
    }
}

fn read(text: &str) -> (Manifest, Vec<String>) {
    let mut jobs = Vec::new();
    let mut skipped = Vec::new();
    for document in read_manifests(text, &[]).unwrap() {
        match document {
            Document::IpuJob(manifest) => jobs.push(*manifest),
            Document::Skipped(other) => skipped.push(format!("{} {}", other.kind, other.name)),
        }
    }
    assert_eq!(jobs.len(), 1);
    (jobs.remove(0), skipped)
}
