//! The name of the cluster in `slurm.conf`.

use ipu_slurm::conf::{ClusterNameSetting, cluster_name_settings};
use proptest::prelude::*;

#[test]
fn the_name_of_the_cluster_is_read_as_slurm_reads_it() {
    let name = |name: &str| vec![ClusterNameSetting::Name(name.to_owned())];
    for (text, expected) in [
        ("ClusterName=testbed\n", name("testbed")),
        ("# ClusterName=no\nclustername = Pod-1 # yes\n", name("pod-1")),
        (
            "AccountingStorageClusterName=no\nClusterName=\"a\" SlurmUser=slurm",
            name("a"),
        ),
        (
            "ClusterName=\nSlurmUser=slurm\nNodeName=ClusterName=x\n",
            Vec::new(),
        ),
        (
            "include  ipu.conf # more\n",
            vec![ClusterNameSetting::Include("ipu.conf".into())],
        ),
    ] {
        assert_eq!(cluster_name_settings(text), expected, "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "(ClusterName|Include|[= #\"a]|\n|\\PC){0,30}") {
        let _ = cluster_name_settings(&text);
    }
}
