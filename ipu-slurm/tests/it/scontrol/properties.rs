//! Properties: a printed job parses back to itself, and no text makes the parser panic.

use ipu_slurm::{AdminComment, JobState, admin_comment_in, parse_allocated_gres, parse_job, parse_jobs};
use proptest::prelude::*;

use super::allocated::DETAIL;
use super::{VERSIONS, captured};

/// Returns a captured record with other values, of a version's form.
fn printed(version: &str, changes: &[(&str, &str, &str)]) -> String {
    let mut text = captured(version, "running");
    for (key, old, new) in changes {
        let old = format!(" {key}={old} ");
        assert_eq!(text.matches(&old).count(), 1, "{version}: {old}");
        text = text.replace(&old, &format!(" {key}={new} "));
    }
    text
}

/// The rest of a whole record after its name.
const FORGED: &str = "x UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 Nice=0 Account=a QOS=(null) \
    JobState=COMPLETED Reason=None Restarts=9 TimeLimit=UNLIMITED SubmitTime=1 StartTime=1 NodeList=(null) \
    Nodes=n1 CPU_IDs=0 Mem=0 GRES=vipu:64(CNT:1) Licenses=pod64:64 Network=(null)";

/// Texts that a user may choose: words, keys of `scontrol`, blanks and line feeds.
fn user_text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        3 => "[a-zA-Z0-9=:/_.é-]{1,8}",
        1 => Just("JobState=COMPLETED".to_owned()),
        1 => Just("JobState=COMPLETED Reason=None".to_owned()),
        1 => Just("NodeList=".to_owned()),
        1 => Just("UserId=root(0)".to_owned()),
        1 => Just("AdminComment=vipu: x".to_owned()),
        1 => Just("Network=(null)".to_owned()),
        1 => Just("Account=a QOS=b".to_owned()),
        1 => Just("\nJobId=1 JobName=y".to_owned()),
        1 => Just(FORGED.to_owned()),
        1 => Just(format!("{FORGED}\nJobId=999999 JobName=x")),
        1 => Just("\t".to_owned()),
    ];
    prop::collection::vec(word, 0..6).prop_map(|words| words.join(" "))
}

fn state() -> impl Strategy<Value = JobState> {
    prop_oneof![
        Just(JobState::Pending),
        Just(JobState::Running),
        Just(JobState::Completing),
        Just(JobState::Timeout),
        "[A-Z][A-Z_]{3,12}".prop_map(|text| JobState::parse(&text).expect("it is a word")),
    ]
}

proptest! {
    #[test]
    fn a_printed_job_parses_back_or_is_refused(
        version in prop::sample::select(&VERSIONS[..]),
        id in 1_u32..=u32::MAX,
        name in user_text(),
        comment in user_text(),
        state in state(),
        nodes in prop_oneof![Just(String::new()), "[a-z]{1,5}-\\[[0-9]-[0-9]\\]"],
        submitted in 0_u64..=u64::MAX,
        account in "[a-z]{1,8}",
    ) {
        let submitted = submitted.to_string();
        let old_submitted = &parse_job(&captured(version, "running"), captured_id(version)).unwrap().submit_time;
        let changes = [
            ("JobState", "RUNNING", state.as_str()),
            ("NodeList", "ipu-host-1", &nodes),
            ("SubmitTime", old_submitted, &submitted),
            ("Account", "(null)", &account),
            ("WorkDir", "/home/user", &format!("/home/user Comment={comment} ")),
            ("JobName", "plain", &name),
        ];
        let text = printed(version, &changes).replacen(
            &format!("JobId={} ", captured_id(version)),
            &format!("JobId={id} "),
            1,
        );
        if let Ok(job) = parse_job(&text, id) {
            prop_assert_eq!(&job.name, &name);
            prop_assert_eq!(job.state, state);
            prop_assert_eq!(job.node_list.unwrap_or_default(), nodes);
            prop_assert_eq!(job.submit_time, submitted);
            prop_assert_eq!(job.account, Some(account));
            prop_assert!(job.admin_comment == AdminComment::Absent || comment.contains("AdminComment="));
        } else {
            let spoiled = |text: &str| {
                text.contains('\n') || text.contains("Reason=") || text.contains("UserId=")
            };
            prop_assert!(spoiled(&name) || spoiled(&comment), "{:?} {:?}", name, comment);
        }
    }

    #[test]
    fn no_text_of_a_user_changes_the_resources_of_a_job(name in user_text(), directory in user_text()) {
        let text = DETAIL
            .replacen("JobName=true", &format!("JobName={name}"), 1)
            .replacen("WorkDir=/tmp", &format!("WorkDir={directory}"), 1);
        if let Ok(gres) = parse_allocated_gres(&text, 2) {
            prop_assert_eq!(gres.to_string(), "vipu:1:1,vipu:2:1");
        } else {
            let spoiled = |text: &str| text.contains('\n') || text.contains("Reason=");
            prop_assert!(spoiled(&name) || spoiled(&directory), "{:?} {:?}", name, directory);
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(JobId=[0-9]{1,3} |JobName=| UserId=root\\(0\\)|JobState=|\\PC|\n| ){0,30}") {
        let _ = parse_jobs(&text);
        let _ = parse_job(&text, 1);
        let _ = admin_comment_in(&text, 1);
    }
}

fn captured_id(version: &str) -> u32 {
    if version == "22.05" { 7 } else { 1 }
}
