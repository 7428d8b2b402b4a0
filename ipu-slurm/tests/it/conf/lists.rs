//! Single rules of host maps, node lines and license lists, as tables.

use ipu_slurm::conf::{HostMap, LicenseList, NodeGresList};

use super::shown;

#[test]
fn a_host_map_without_hosts_is_refused() {
    for text in ["", "\n", "# host-1:ipum1\n"] {
        let errors = shown(&HostMap::parse("ipum.allocs", text).unwrap_err());
        assert_eq!(
            errors,
            "ipum.allocs:1:1: host is absent: a host map has a host; add host:machine,machine\n"
        );
    }
}

#[test]
fn a_long_line_is_one_mistake() {
    let text = format!("host-1:{}\nhost-2:a\n", ",".repeat(100_000));
    let errors = HostMap::parse("ipum.allocs", &text).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().len() < 300);
}

#[test]
fn node_lists_are_expanded_and_lines_are_continued() {
    let text = "NodeName=a-[08-10,12],b Gres=gpu:1,vipu:1:4 \\\n  State=UNKNOWN\n\
                nodename=c \\\n  gres=vipu:2:2,vipu:1:1K # comment\nNodeName=d Gres=gpu:x:y:z";
    let list = NodeGresList::parse("slurm.conf", text, &[]).unwrap();
    let names: Vec<_> = list.nodes().iter().map(|node| node.name()).collect();
    assert_eq!(names, ["a-08", "a-09", "a-10", "a-12", "b", "c"]);
    assert_eq!(list.node("c").unwrap().gres()[1].to_string(), "vipu:1:1024");
    assert!(list.node("d").is_none());
    for nodes in [
        "a-[1-99999999]",
        "a[1",
        "a[x]",
        "a[1-2][3-4]",
        "a,,b",
        "a[2-1]",
        "a[]",
        "-a",
    ] {
        let text = format!("NodeName={nodes} Gres=vipu:1:1");
        let errors = NodeGresList::parse("slurm.conf", &text, &[]).unwrap_err();
        assert_eq!((errors.len(), errors[0].line), (1, 1), "{nodes}");
    }
}

#[test]
fn licenses_are_names_with_counts() {
    let list = LicenseList::parse("--licenses", "pod64:16,matlab@server:2,ansys").unwrap();
    assert_eq!(
        (list.count("pod64"), list.count("ansys"), list.count("pod16")),
        (Some(16), Some(1), None)
    );
    assert_eq!(list.to_string(), "pod64:16,matlab@server:2,ansys:1");
    assert_eq!(list.items()[1].name(), "matlab@server");
    for none in ["", "(null)"] {
        assert_eq!(LicenseList::parse("--licenses", none).unwrap().items(), []);
    }
}

#[test]
fn alternatives_of_licenses_are_refused_with_the_right_spelling() {
    let errors = shown(&LicenseList::parse("--licenses", "a:1,pod64:8|pod16:8").unwrap_err());
    assert_eq!(
        errors,
        "--licenses:1:12: license = pod64:8|pod16:8: alternatives are not supported; \
         request one of them, such as pod64:8\n"
    );
}

#[test]
fn every_mistake_of_a_license_list_is_reported_at_once() {
    let text = "pod64:0,,pod16=2,:3,pod64:1,pod64:2,pod32:x,a b,c;d,|,e:99999999999,f:1:2";
    let errors = LicenseList::parse("--licenses", text).unwrap_err();
    let columns: Vec<_> = errors.iter().map(|error| error.column).collect();
    assert_eq!(
        columns,
        [7, 9, 15, 18, 29, 43, 46, 50, 53, 57, 71],
        "{}",
        shown(&errors)
    );
    assert!(LicenseList::parse("--licenses", "pod64:1\nmail").is_err());
}
