//! Sentences that a person reads.

use std::time::Duration;

use ipu_slurm::text::{
    Holder, Shortage, admin_comment, describe_timeout, hook_failure, may_replace, no_partition_file,
    notification, proxy_failure, ready, shortage,
};
use proptest::prelude::*;

fn holder(owner: &str, until: Option<&str>) -> Holder {
    Holder {
        owner: owner.to_owned(),
        ipus: 16,
        until: until.map(str::to_owned),
    }
}

fn facts(holders: Vec<Holder>) -> Shortage {
    Shortage {
        model: "pod64".to_owned(),
        ipus: 16,
        free: 12,
        largest: 8,
        holders,
    }
}

#[test]
fn every_sentence_names_its_numbers() {
    let holders = vec![
        holder("SlurmJob testbed/slurm-7", Some("10:30")),
        holder("IPUJob default/mnist", None),
        holder("HostRun root/run", None),
        holder("IPUJob default/bert", None),
    ];
    let sentence = shortage(&facts(holders));
    assert_eq!(
        sentence,
        "waits for 16 IPUs of pod64: 12 free, largest partition 8; held by SlurmJob testbed/slurm-7 (16, until \
         10:30), IPUJob default/mnist (16), HostRun root/run (16) and 1 more"
    );
    let short = shortage(&facts(vec![]));
    assert_eq!(short, "waits for 16 IPUs of pod64: 12 free, largest partition 8");
    assert_eq!(
        admin_comment(&describe_timeout(Duration::from_secs(600), &short)),
        format!("vipu: no IPUs within 600 s (WaitInProlog): {short}")
    );
    assert_eq!(notification(7, &short), format!("vipu: job 7 {short}"));
    assert_eq!(
        proxy_failure("https://proxy:8080", "connection refused"),
        "the proxy https://proxy:8080 failed: connection refused"
    );
    assert_eq!(
        ready("p-slurm-7-0-abc", 4, "pod64"),
        "has partition p-slurm-7-0-abc with 4 IPUs of pod64"
    );
    assert_eq!(
        hook_failure("prolog-slurmctld", Some(7), "a\nb"),
        "ipu-slurm prolog-slurmctld: job 7: a b"
    );
    assert_eq!(hook_failure("gc", None, "x"), "ipu-slurm gc: x");
    let task = no_partition_file("/home/ipuof/testbed-7.env", Duration::from_secs(30));
    assert!(
        task.contains("/home/ipuof/testbed-7.env has not appeared within 30 s"),
        "{task}"
    );
}

#[test]
fn comments_of_others_are_never_replaced() {
    assert!(may_replace(None) && may_replace(Some("vipu: waits")) && may_replace(Some("vipu:")));
    for other in ["ticket 4711", " vipu: x", "vipux"] {
        assert!(!may_replace(Some(other)), "{other}");
    }
}

proptest! {
    #[test]
    fn every_sentence_is_one_short_line_and_every_comment_is_ours(
        owner in any::<String>(), problem in any::<String>(), count in 0_usize..9,
    ) {
        let sentence = shortage(&facts(vec![holder(&owner, Some(&problem)); count]));
        let comment = admin_comment(&sentence);
        prop_assert!(may_replace(Some(&comment)));
        let texts = [
            comment,
            notification(1, &sentence),
            proxy_failure(&owner, &problem),
            no_partition_file(&owner, Duration::ZERO),
        ];
        for text in texts {
            prop_assert!(!text.contains(char::is_control), "{:?}", text);
            prop_assert!(text.chars().count() < 1_800, "{:?}", text);
        }
    }
}
