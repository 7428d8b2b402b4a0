//! Standard Workload Format: conversion to IPUs, skipped records, precise errors.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::hardware::Topology;
use ipu_testkit::{SkipReason, SwfOptions, Trace};
use proptest::prelude::*;

use super::policies::job;

const SAMPLE: &str = include_str!("../../../testdata/mixed.swf");

fn parsed(text: &str) -> Trace {
    Trace::parse_swf(text, &SwfOptions::default()).unwrap()
}

#[track_caller]
fn parse_error(text: &str) -> String {
    Trace::parse_swf(text, &SwfOptions::default())
        .unwrap_err()
        .to_string()
}

fn line(number: u64, submit: &str, runtime: &str, allocated: &str, requested: &str, status: &str) -> String {
    format!(
        "{number} {submit} -1 {runtime} {allocated} -1 -1 {requested} -1 -1 {status} -1 -1 -1 2 -1 -1 -1\n"
    )
}

#[test]
fn a_file_becomes_a_trace_that_can_be_scored() {
    let score =
        ipu_testkit::score_policy::<ipu_core::placement::BestFit>(&parsed(SAMPLE), &Topology::pod64());
    assert_eq!((score.ran, score.refused, score.stranded), (180, 0, 0));
}

#[test]
fn processors_become_ipus_rounded_up_to_a_power_of_two() {
    let sizes = |per: u32, processors: &str| {
        let mut options = SwfOptions::default();
        options.processors_per_ipu = per.try_into().unwrap();
        let trace = Trace::parse_swf(line(1, "0", "5", processors, "-1", "1"), &options).unwrap();
        trace.jobs().iter().map(|job| job.size.get()).collect::<Vec<_>>()
    };
    assert_eq!(
        [sizes(1, "1"), sizes(1, "3"), sizes(1, "64"), sizes(1, "65")],
        [[1], [4], [64], [128]]
    );
    assert_eq!(
        [
            sizes(24, "1"),
            sizes(24, "48"),
            sizes(24, "49"),
            sizes(24, "96.0")
        ],
        [[1], [2], [4], [4]]
    );
    assert!(sizes(1, "65537").is_empty());
    assert_eq!(sizes(2, "131072"), [65_536]);
}

#[test]
fn skipped_records_are_counted_by_reason() {
    let text = [
        line(1, "-1", "5", "1", "1", "1"),
        line(2, "0", "-1", "1", "1", "1"),
        line(3, "0", "5", "-1", "0", "1"),
        line(4, "0", "5", "65537", "-1", "1"),
        line(5, "0", "0", "8", "8", "5"),
        line(6, "0", "5", "8", "8", "2"),
        line(7, "0", "5", "8", "8", "3"),
        line(8, "0", "5", "8", "8", "4"),
        line(9, "0", "5", "0", "2", "0"),
        line(10, "0", "0.25", "1", "2", "5"),
        line(11, "0", "0", "1", "2", "1"),
    ];
    let trace = parsed(&text.concat());
    let expected = [
        (SkipReason::UnknownSubmit, 1),
        (SkipReason::UnknownRuntime, 1),
        (SkipReason::UnknownSize, 1),
        (SkipReason::TooLarge, 1),
        (SkipReason::NeverStarted, 1),
        (SkipReason::Stretch, 3),
    ];
    assert_eq!(*trace.skipped(), BTreeMap::from(expected));
    let jobs: Vec<_> = trace
        .jobs()
        .iter()
        .map(|job| (job.number, job.size.get()))
        .collect();
    assert_eq!(jobs, [(9, 2), (10, 1), (11, 1)]);
    let table =
        ipu_testkit::score_policy::<ipu_core::placement::BestFit>(&trace, &Topology::pod4()).to_string();
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("skipped, partial record") && line.ends_with('3')),
        "{table}"
    );
}

#[test]
fn errors_name_line_field_value_rule_and_fix() {
    assert_eq!(
        parse_error(&format!("; comment\n\n{}", line(1, "0", "-5", "1", "1", "1"))),
        "line 3: run time (field 4) = \"-5\": must be 0 to 10000000000 seconds, or -1; \
        write a decimal number, or -1 if it is unknown"
    );
    assert_eq!(
        parse_error(&line(1, "0", "5", "1.5", "1", "1")),
        "line 1: allocated processors (field 5) = \"1.5\": must be a whole number from 0 on, or -1; \
        write -1 if it is unknown"
    );
    assert_eq!(
        parse_error("1 2 3"),
        "line 1: number of fields = \"3\": must be 18; \
        write -1 for unknown values, and comments on separate lines after `;`"
    );
    for (submit, runtime, allocated, status) in [
        ("10000000001", "5", "1", "1"),
        ("inf", "5", "1", "1"),
        ("0", "NaN", "1", "1"),
        ("0", "5", "-2", "1"),
        ("0", "5", "1", "done"),
        ("0", "5", "99999999999999999999", "1"),
    ] {
        assert!(parse_error(&line(1, submit, runtime, allocated, "1", status)).starts_with("line 1: "));
    }
    let long = "x".repeat(10_000);
    assert!(parse_error(&line(1, &long, "5", "1", "1", "1")).len() < 300);
}

#[test]
fn comments_are_free_text_in_any_encoding() {
    let mut text = b"; Version: 2.2\r\n;MaxProcs:  128 (of them 8 interactive)\r\n;;; nothing\r\n".to_vec();
    text.extend(b"; Computer: Universit\xe9\n");
    text.extend(
        line(1, "0", "5", "1", "1", "1")
            .replace('\n', "\r\n")
            .into_bytes(),
    );
    let trace = Trace::parse_swf(text, &SwfOptions::default()).unwrap();
    assert_eq!(trace.jobs().len(), 1);
}

#[test]
fn jobs_are_sorted_by_submit_time_with_a_stable_order() {
    let text =
        [("9", "1"), ("3", "2"), ("9", "4")].map(|(submit, size)| line(1, submit, "5", size, "-1", "1"));
    let sizes: Vec<u32> = parsed(&text.concat())
        .jobs()
        .iter()
        .map(|job| job.size.get())
        .collect();
    assert_eq!(sizes, [2, 1, 4]);
}

#[test]
fn a_trace_is_scaled_to_the_requested_load() {
    let trace = Trace::of_jobs([job(0, 10, 4), job(10, 30, 4)]);
    assert_eq!(trace.load(16), Some(1.0));
    let half = trace.at_load(0.5, 16);
    assert_eq!(half.load(16), Some(0.5));
    assert_eq!(half.jobs()[1].submit, Duration::from_secs(20));
    assert_eq!(trace.at_load(0.0, 16), trace);
    assert_eq!(Trace::of_jobs([job(0, 10, 4)]).load(16), None);
}

proptest! {
    #[test]
    fn the_parser_never_panics_on_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Trace::parse_swf(bytes, &SwfOptions::default());
    }

    #[test]
    fn the_parser_counts_each_line_with_numbers_as_a_job_or_as_skipped(
        fields in prop::collection::vec(
            prop_oneof![
                4 => Just("-1".to_owned()),
                4 => (0_u32..300).prop_map(|number| number.to_string()),
                1 => any::<f64>().prop_map(|number| number.to_string()),
                1 => any::<i64>().prop_map(|number| number.to_string()),
                1 => Just("1e9".to_owned()),
            ],
            18..=18,
        ),
        per in 1_u32..,
    ) {
        let mut options = SwfOptions::default();
        options.processors_per_ipu = per.try_into().unwrap();
        if let Ok(trace) = Trace::parse_swf(fields.join(" "), &options) {
            let lines = trace.jobs().len() as u64 + trace.skipped().values().sum::<u64>();
            prop_assert_eq!(lines, 1);
        }
    }
}
