//! Properties: no text of a user changes the resources of a job, and none makes the parser panic.

use ipu_slurm::parse_allocated_gres;
use proptest::prelude::*;

use super::allocated::DETAIL;

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
        1 => Just("Network=(null)".to_owned()),
        1 => Just("Account=a QOS=b".to_owned()),
        1 => Just("\nJobId=1 JobName=y".to_owned()),
        1 => Just(FORGED.to_owned()),
        1 => Just(format!("{FORGED}\nJobId=999999 JobName=x")),
        1 => Just("\t".to_owned()),
    ];
    prop::collection::vec(word, 0..6).prop_map(|words| words.join(" "))
}

proptest! {
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
        let _ = parse_allocated_gres(&text, 1);
    }
}
