//! Single rules of host maps, node lines and license lists, as tables.

use ipu_slurm::conf::{HostMap, LicenseList, NodeGresList, SlurmConf};

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
fn node_lists_are_expanded_and_mistakes_are_those_of_their_nodes() {
    let text = "NodeName=a-[08-10,12],b Gres=gpu:1,,vipu:1:4 \\\n  State=UNKNOWN\n\
                nodename=c \\\n  gres=vipu:2:2,vipu:1:1K # comment\nNodeName=d Gres=gpu:x:y:z,:\n\
                NodeName=rack[1-2]-n[01-02] Gres=vipu:2:1\nNodeName=e,f Gres=vipu:3:1\nNodeName=[] Gres=vipu:1";
    let list = NodeGresList::parse(&SlurmConf::parse("slurm.conf", text), &[]);
    let names: Vec<_> = list.nodes().iter().map(|node| node.name()).collect();
    let racks = ["rack1-n01", "rack1-n02", "rack2-n01", "rack2-n02"];
    assert_eq!(names[..6], ["a-08", "a-09", "a-10", "a-12", "b", "c"]);
    assert_eq!(names[6..], racks);
    assert_eq!(list.node("c").unwrap().gres()[1].to_string(), "vipu:1:1024");
    assert!(list.node("d").is_none());
    assert_eq!(list.errors().len(), 3);
    for (node, lines) in [("a-08", vec![]), ("f", vec![7]), ("g", vec![8, 8])] {
        let found: Vec<usize> = list.errors_of(node).iter().map(|error| error.line).collect();
        assert_eq!(found, lines, "{node}");
    }
}

#[test]
fn a_node_list_with_a_mistake_is_refused() {
    for nodes in [
        "a-[1-99999999]",
        "a[1",
        "a[x]",
        "a[1-999][1-999]",
        "a,,b",
        "a[2-1]",
        "a[]",
        "-a",
    ] {
        let conf = SlurmConf::parse("slurm.conf", &format!("NodeName={nodes} Gres=vipu:1:1"));
        let errors = NodeGresList::parse(&conf, &[]).errors();
        assert_eq!((errors.len(), errors[0].line), (1, 1), "{nodes}");
    }
}

#[test]
fn a_mistake_in_a_continued_value_is_placed_on_its_first_line() {
    let conf = SlurmConf::parse("slurm.conf", "NodeName=a Gres=vipu:\\\nNodeName=\n");
    let errors = NodeGresList::parse(&conf, &[]).errors();
    assert_eq!((errors[0].line, errors[0].column), (1, 23), "{}", errors[0]);
}

#[test]
fn licenses_are_read_as_slurm_reads_them() {
    for (text, licenses, errors) in [
        ("", "", 0),
        ("(null)", "", 0),
        (
            "pod64:16,matlab@server:2,ansys",
            "pod64:16 matlab@server:2 ansys:1",
            0,
        ),
        ("matlab:4;pod16:16,ansys:0", "matlab:4 pod16:16 ansys:0", 0),
        ("matlab=4,pod16=16", "matlab:4 pod16:16", 0),
        ("a:1,b:2,a:3,a", "a:5 b:2", 0),
        (",;a:1,;,b:2;", "a:1 b:2", 0),
        ("a:1, b:2 ", "a:1 b:2", 0),
        ("a:", "a:0", 0),
        ("a-b_c.d/e+f:1", "a-b_c.d/e+f:1", 0),
        ("a:x,b:1,c:-1,d:1:2,:4,e:99999999999", "b:1", 5),
        ("a b:1,c:1", "c:1", 1),
        ("pod64:8|pod16:8", "", 1),
        ("a:4294967295,b", "b:1", 1),
    ] {
        let list = LicenseList::parse("--licenses", text);
        let found: Vec<String> = list.items().iter().map(ToString::to_string).collect();
        assert_eq!(
            (found.join(" ").as_str(), list.errors().len()),
            (licenses, errors),
            "{text}"
        );
        assert_eq!(list.is_empty(), licenses.is_empty() && errors == 0);
    }
}

#[test]
fn an_item_that_is_no_license_is_named_by_itself() {
    let errors = LicenseList::parse("--licenses", "a:1,pod64:8|pod16:8,b:x");
    assert_eq!(
        shown(errors.errors()),
        "--licenses:1:12: license = pod64:8|pod16:8: alternatives are not supported; \
         request one of them, such as pod64:8\n\
         --licenses:1:21: license = b:x: a count is a whole number from 0 to 2147483647; \
         write b:1, for example\n"
    );
}
