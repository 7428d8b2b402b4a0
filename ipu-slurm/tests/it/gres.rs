//! Texts that Slurm was observed to write, and round trips.

use ipu_slurm::{Counting, Gres, GresList};
use proptest::prelude::*;

#[track_caller]
fn parse(text: &str) -> Gres {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn refused(text: &str) -> String {
    text.parse::<GresList>()
        .expect_err("the text is refused")
        .to_string()
}

#[test]
fn texts_that_slurm_writes_are_parsed() {
    // Text, type, count: `--gres` of users, `Gres=` of nodes, `GRES=`, `JOB_GRES=` and `TresPerNode=` of
    // scontrol, `gres_detail` of squeue, on Slurm 22.05 and 24.11; and the examples of the guide (Slurm guide
    // §8.3).
    for (text, kind, count) in [
        ("vipu", None, 1),
        ("vipu:2", None, 2),
        ("vipu:16", None, 16),
        ("vipu:16:1", Some("16"), 1),
        ("vipu:3:1", Some("3"), 1),
        ("vipu:2:9", Some("2"), 9),
        ("vipu:big:1", Some("big"), 1),
        ("vipu:1:16", Some("1"), 16),
        ("vipu:2:8", Some("2"), 8),
        ("vipu:4:4", Some("4"), 4),
        ("vipu:2:3", Some("2"), 3),
        ("gres:vipu:2", None, 2),
        ("gres:vipu:2:1", Some("2"), 1),
        ("gres:vipu:2:3", Some("2"), 3),
        ("gres/vipu:2", None, 2),
        ("gres/vipu:2:3", Some("2"), 3),
        ("vipu:2(CNT:3)", Some("2"), 3),
        ("vipu:1(CNT:1)", Some("1"), 1),
        ("vipu:4(CNT:2)", Some("4"), 2),
        ("vipu:1(CNT:16)", Some("1"), 16),
        ("vipu:16(CNT:1)", Some("16"), 1),
        ("vipu:pod64(CNT:0)", Some("pod64"), 0),
        ("vipu:pod64:48", Some("pod64"), 48),
        ("vipu:pod64:64", Some("pod64"), 64),
        ("ipu:4", None, 4),
        ("gres/ipu:pod16:4", Some("pod16"), 4),
        ("gres:ipu:4", None, 4),
    ] {
        let gres = parse(text);
        assert_eq!((gres.kind(), gres.count()), (kind, count), "{text}");
        assert_eq!(gres.counting(), Counting::Consumed, "{text}");
        assert_eq!(parse(&gres.to_string()), gres, "{text}");
    }
}

#[test]
fn the_resource_of_the_plugin_is_not_consumed() {
    let gres = parse("vipu:pod64:no_consume:64");
    assert_eq!(
        (gres.name(), gres.kind(), gres.count()),
        ("vipu", Some("pod64"), 64)
    );
    assert_eq!(gres.counting(), Counting::NotConsumed);
    assert_eq!(gres.to_string(), "vipu:pod64:no_consume:64");
    assert_eq!(parse("vipu:no_consume:2").to_string(), "vipu:no_consume:2");
}

#[test]
fn a_number_after_the_name_is_a_count_and_a_word_is_a_type() {
    assert_eq!((parse("vipu:2k").kind(), parse("vipu:2k").count()), (None, 2048));
    assert_eq!(parse("vipu:pod16").kind(), Some("pod16"));
    assert_eq!(parse("vipu:pod16").count(), 1);
    assert_eq!(parse("gpu:2g.10gb").kind(), Some("2g.10gb"));
    assert_eq!(parse("vipu:4M").count(), 4 << 20);
    assert_eq!(parse("vipu:4:1P").count(), 1 << 50);
}

#[test]
fn indices_and_sockets_are_left_out() {
    for (text, printed) in [
        ("gpu:a100:5(IDX:0-3,8)", "gpu:a100:5"),
        ("gpu:2(S:0-1)", "gpu:2"),
        ("gpu:0(IDX:N/A)", "gpu:0"),
        ("gpu:2(IDX:1,0)(S:1)", "gpu:2"),
        ("gpu:a(CNT:3)(IDX:0-2)", "gpu:a:3"),
    ] {
        assert_eq!(parse(text).to_string(), printed);
    }
}

#[test]
fn a_list_is_split_at_commas_outside_parentheses() {
    let list: GresList = "--gres=vipu:1,vipu:4,gpu:a:3(IDX:0-1,7),nic".parse().unwrap();
    let counts: Vec<u64> = list.items().iter().map(Gres::count).collect();
    assert_eq!(counts, [1, 4, 3, 1]);
    assert_eq!(list.named("vipu").count(), 2);
    for none in ["", "(null)", "--gres="] {
        assert_eq!(none.parse::<GresList>().unwrap(), GresList::default());
    }
    assert_eq!(GresList::default().to_string(), "(null)");
}

#[test]
fn an_error_contains_position_rule_and_fix() {
    assert_eq!(
        refused("vipu:::"),
        "\"vipu:::\", character 6 (\"\"): a part between colons is empty; write name, name:count or name:type:count"
    );
    for (text, position) in [
        ("vipu,,gpu", 6),
        ("4", 1),
        ("gres:4", 6),
        ("gres", 1),
        ("vipu:2:three", 8),
        ("vipu:a:b:3", 8),
        ("vipu:pö", 7),
        ("vipu(CNT:x)", 10),
        ("vipu(IDX:1", 6),
        ("vipu(IDX:1)x", 12),
        ("vipu(CNT:1)(CNT:2)", 13),
        ("vipu(1/8)", 6),
        ("vipu:99999999999999999999", 6),
        ("vipu:16384P", 6),
        ("vipu:no_consume:no_consume:2", 6),
    ] {
        let error = text.parse::<GresList>().unwrap_err();
        assert_eq!(error.position, position, "{text}: {error}");
        assert!(!error.rule.is_empty() && !error.fix.is_empty());
    }
}

#[test]
fn an_error_truncates_a_long_text() {
    let long = format!("vipu:{}:1", "ä".repeat(10_000));
    assert!(refused(&long).len() < 500, "{}", refused(&long).len());
}

#[test]
fn a_count_becomes_a_partition_size_only_if_it_is_a_power_of_two() {
    assert_eq!(parse("ipu:4").ipus().unwrap().get(), 4);
    for text in ["ipu:3", "ipu:0", "ipu:128K", "ipu:4G"] {
        assert!(parse(text).ipus().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn a_printed_list_parses_to_itself(
        items in proptest::collection::vec(
            "[a-fh-z][a-zA-Z0-9_.-]{0,8}(:[a-mo-zA-Z0-9][a-zA-Z0-9_.-]{0,8})?(:no_consume)?:[0-9]{1,9}",
            1..5,
        ),
    ) {
        let list: GresList = items.join(",").parse().expect("all have a count");
        prop_assert_eq!(list.to_string().parse::<GresList>(), Ok(list.clone()));
        for gres in list.items() {
            for prefix in ["gres:", "gres/"] {
                prop_assert_eq!(format!("{prefix}{gres}").parse::<Gres>(), Ok(gres.clone()));
            }
        }
    }

    #[test]
    fn similar_texts_round_trip_or_are_refused_with_a_position(text in "(gres[:/])?[a-z]{1,4}(:[a-z0-9]{0,3}){0,3}(\\([A-Z]{0,3}:?[0-9,-]{0,6}\\)){0,2}") {
        match text.parse::<Gres>() {
            Ok(gres) => prop_assert_eq!(gres.to_string().parse::<Gres>(), Ok(gres)),
            Err(error) => prop_assert!(error.position >= 1 && error.position <= text.len() + 1, "{}", error),
        }
    }
}
