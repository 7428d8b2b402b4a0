//! The resources of a job on its nodes.

use ipu_slurm::parse_allocated_gres;

pub(super) const DETAIL: &str = include_str!("../../data/scontrol-22.05/detail-gres.txt");

#[test]
fn the_resources_on_a_node_have_their_size_and_count() {
    let list = parse_allocated_gres(DETAIL, 2).unwrap();
    assert_eq!(list.to_string(), "vipu:1:1,vipu:2:1");
    let none = DETAIL.replace("GRES=vipu:1(CNT:1),vipu:2(CNT:1) ", "GRES= ");
    assert_eq!(parse_allocated_gres(&none, 2).unwrap().items(), []);
}

#[test]
fn a_user_cannot_choose_the_resources_by_a_name_or_comment() {
    let forged = "JobName=x JobState=RUNNING Reason=None Nodes=n1 GRES=vipu:16:1";
    if let Ok(list) = parse_allocated_gres(&DETAIL.replace("JobName=true", forged), 2) {
        assert_eq!(list.to_string(), "vipu:1:1,vipu:2:1");
    }
    let forged = "WorkDir=/tmp   Nodes=n1 GRES=vipu:16:1";
    let list = parse_allocated_gres(&DETAIL.replace("WorkDir=/tmp", forged), 2);
    assert_eq!(list.unwrap().to_string(), "vipu:1:1,vipu:2:1");
}

#[test]
fn nodes_with_different_resources_of_other_kinds_are_accepted() {
    let more = "GRES=vipu:1(CNT:1),vipu:2(CNT:1),gpu:a100:1(IDX:0)   Nodes=n3 CPU_IDs=0 Mem=0 \
                GRES=gpu:a100:2(IDX:0,2),vipu:1(CNT:1),vipu:2(CNT:1) ";
    let text = DETAIL.replace("GRES=vipu:1(CNT:1),vipu:2(CNT:1) ", more);
    let list = parse_allocated_gres(&text, 2).unwrap();
    assert_eq!(list.named("vipu").count(), 2);
}

#[test]
fn nodes_with_different_resources_are_refused() {
    let more = "GRES=vipu:1(CNT:1),vipu:2(CNT:1)   Nodes=n3 CPU_IDs=0 Mem=0 GRES=vipu:4(CNT:1) ";
    let text = DETAIL.replace("GRES=vipu:1(CNT:1),vipu:2(CNT:1) ", more);
    let error = parse_allocated_gres(&text, 2).unwrap_err().to_string();
    assert!(
        error.starts_with("GRES = vipu:4(CNT:1): the nodes of the job have different vipu"),
        "{error}"
    );
    let nodes = "   Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=vipu:1(CNT:1),vipu:2(CNT:1)";
    let error = parse_allocated_gres(&DETAIL.replace(nodes, ""), 2)
        .unwrap_err()
        .to_string();
    assert!(error.contains("the job has no nodes"), "{error}");
}

#[test]
fn a_record_that_a_user_may_have_forged_is_refused() {
    for (text, rule) in [
        (DETAIL.repeat(2), "several lines"),
        (
            DETAIL.replace("JobName=true", "JobName=a\nJobId=2 JobName=true"),
            "several lines",
        ),
        (DETAIL.replace("JobId=2 ", "JobId=3 "), "no record of the job"),
        (
            DETAIL.replace(" Licenses=", " Licences="),
            "not as Slurm prints them",
        ),
    ] {
        let error = parse_allocated_gres(&text, 2).unwrap_err().to_string();
        assert!(error.contains(rule), "{error}");
    }
}
