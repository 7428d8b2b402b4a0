//! `ipuctl --proxy URL` against a proxy that serves, with a simulated controller of 32 IPUs behind it.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use vipu_proxy::{Proxy, Settings};

use crate::harness::{Done, Home, Running, job};

/// A proxy, and a home of somebody who asks it.
struct Served {
    home: Home,
    url: String,
    runtime: Runtime,
    proxy: Option<Proxy>,
}

impl Served {
    fn start() -> Self {
        Self::with(Home::new(), Settings::default())
    }

    fn with(home: Home, more: Settings) -> Self {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut settings = Settings::default();
        settings.sim = Some("1x8".into());
        settings.sim_delay_ms = Some(0);
        settings.sim_listen = Some(anywhere);
        settings.listen = Some(anywhere);
        let runtime = Runtime::new().unwrap();
        let config = more.or(settings).check().unwrap();
        let proxy = runtime.block_on(Proxy::start(config)).unwrap();
        Self {
            home,
            url: format!("http://{}", proxy.addr()),
            runtime,
            proxy: Some(proxy),
        }
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["--proxy", &self.url], arguments].concat()
    }

    fn run(&self, arguments: &[&str]) -> Done {
        self.home.run(&self.arguments(arguments))
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        assert_eq!(done.code, 0, "{arguments:?}: {done:?}");
        done.out
    }

    fn json(&self, arguments: &[&str]) -> Value {
        self.home.json(&self.arguments(arguments))
    }

    #[track_caller]
    fn fails(&self, code: i32, arguments: &[&str], because: &str) {
        let done = self.run(arguments);
        assert_eq!(done.code, code, "{arguments:?}: {done:?}");
        assert!(done.err.contains(because), "{arguments:?}: {done:?}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(proxy) = self.proxy.take() {
            self.runtime.block_on(proxy.shutdown());
        }
    }
}

#[test]
fn a_partition_lives_from_create_to_remove_through_a_proxy() {
    let served = Served::start();
    served.ok(&[
        "partition",
        "create",
        "p4",
        "--size",
        "4",
        "--num-gcds",
        "2",
        "-n",
        "team",
    ]);
    let listed = served.json(&["partition", "list"]);
    assert_eq!(
        (&listed[0]["id"], &listed[0]["state"], &listed[0]["gcds"]),
        (&json!("p4"), &json!("active"), &json!(2))
    );
    assert_eq!(listed[0]["owner"]["namespace"], "team");
    let shown = served.json(&["partition", "get", "p4"]);
    assert_eq!(shown["ipus"].as_array().unwrap().len(), 4, "{shown}");
    let stats = served.json(&["stats"]);
    assert_eq!(stats["team"], json!({"used": 4, "available": 28}));
    let table = served.ok(&["stats"]);
    assert!(table.contains("team       4     28"), "{table}");
    assert_eq!(served.json(&["query", "2"])["numOfPartitions"], 14);
    served.ok(&["partition", "reset", "p4"]);
    assert_eq!(served.json(&["partition", "get", "p4"])["attempt"], 1);
    served.fails(64, &["partition", "config", "p4"], "--vipu 127.0.0.1:");
    served.ok(&["partition", "delete", "p4"]);
    assert_eq!(served.json(&["partition", "list"]), json!([]));
    served.fails(66, &["partition", "get", "p4"], "NotFound");
}

#[test]
fn the_exit_code_says_why_it_was_not_done() {
    let served = Served::start();
    served.ok(&["partition", "create", "all", "--size", "32"]);
    served.fails(
        75,
        &["partition", "create", "more", "--size", "4", "--no-wait"],
        "DoesNotFit",
    );
    assert_eq!(served.run(&["query", "4"]).code, 75);
    served.fails(78, &["partition", "create", "huge", "--size", "64"], "never fit");
    assert_eq!(served.json(&["waiting"]), json!([]));
    served.fails(64, &["run", "job.yaml"], "--proxy ''");
    served.fails(64, &["server-version"], "ipuctl controllers");
    served.fails(64, &["stats", "-o", "csv"], "usage");
    served.fails(64, &["--vipu", "pod1", "stats"], "exclude each other");
    for command in [
        &["stats"][..],
        &["waiting"],
        &["usage"],
        &["controllers"],
        &["uncordon", "a1"],
    ] {
        let done = served.home.run(command);
        assert!(done.code == 64 && done.err.contains("IPUCTL_PROXY"), "{done:?}");
    }
    let nobody = served.home.run(&["--proxy", "http://127.0.0.1:1", "stats"]);
    assert!(
        nobody.code == 69 && nobody.err.contains("cannot reach"),
        "{nobody:?}"
    );
}

#[test]
fn whoever_waits_is_told_for_whom_and_leaves_the_line_when_he_is_interrupted() {
    let served = Served::start();
    served.ok(&["partition", "create", "all", "--size", "32"]);
    let command = served
        .home
        .command(&served.arguments(&["partition", "create", "more", "--size", "4"]));
    let mut running = Running::start(command);
    let told = running.wait_for("position 1");
    assert!(
        told.contains("held up by User") && told.contains("(all)"),
        "{told}"
    );
    let line = served.ok(&["waiting"]);
    assert!(line.contains("more") && line.contains("position 1"), "{line}");
    running.signal("-INT");
    let (code, seen) = running.end();
    assert_eq!(code, 130, "{seen:?}");
    assert_eq!(served.json(&["waiting"]), json!([]));
}

#[test]
fn a_drain_says_by_its_exit_code_whether_somebody_still_holds_something() {
    let served = Served::start();
    served.ok(&["partition", "create", "all", "--size", "32"]);
    let controllers = served.ok(&["controllers"]);
    assert!(controllers.contains("available  0"), "{controllers}");
    let drain = ["drain", "a1", "--reason", "a fan is broken", "--wait-for", "0"];
    served.fails(75, &drain, "stays cordoned");
    served.fails(75, &drain, "all of User");
    let cordoned = served.json(&["cordon", "a1", "--reason", "a fan is broken"]);
    assert_eq!(cordoned["holders"][0]["id"], "all", "{cordoned}");
    served.ok(&["partition", "remove", "all"]);
    served.ok(&drain);
    served.fails(
        75,
        &["partition", "create", "all", "--size", "32", "--no-wait"],
        "DoesNotFit",
    );
    assert!(served.ok(&["uncordon", "a1"]).contains("a1 uncordoned"));
    assert!(served.ok(&["uncordon", "a1"]).contains("was not cordoned"));
    served.ok(&["partition", "create", "all", "--size", "32", "--no-wait"]);
}

#[test]
fn usage_is_one_line_for_each_hold() {
    let served = Served::start();
    served.ok(&["partition", "create", "p", "--size", "8"]);
    served.ok(&["partition", "remove", "p"]);
    let text = served.ok(&["usage", "--since", "1h", "-o", "csv"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("id,kind,namespace,name,uid,"), "{text}");
    assert!(
        lines[1].starts_with("p,User,") && lines[1].ends_with(",released"),
        "{text}"
    );
    assert_eq!(lines.len(), 2);
    assert_eq!(served.json(&["usage"])["records"][0]["size"], 8);
    assert_eq!(
        served.json(&["usage", "--since", "2999-01-01"])["records"],
        json!([])
    );
    served.fails(64, &["usage", "--since", "yesterday"], "7d");
}

#[test]
fn a_plan_tells_what_would_fit_if_others_ended() {
    let served = Served::start();
    served.ok(&["partition", "create", "half", "--size", "16"]);
    let plan = served.run(&["plan", "--size", "16,16"]);
    assert_eq!(plan.code, 75, "{plan:?}");
    served.ok(&["plan", "--size", "16,16", "--if-ended", "half"]);
    assert_eq!(served.run(&["plan", "--size", "64"]).code, 78);
    let file = served.home.file("job.yaml", &job("mnist", 32, "true"));
    let file = file.to_str().unwrap();
    let done = served.run(&["plan", file]);
    assert!(done.code == 75 && done.out.contains("would wait"), "{done:?}");
    let text = served.ok(&["plan", file, "--if-ended", "half"]);
    assert!(text.contains("fits now"), "{text}");
    let planned = served.json(&["plan", "--size", "8"]);
    assert_eq!(planned["planned"][0]["fits"], true, "{planned}");
}

#[test]
fn gc_has_the_proxy_repair_its_ledger() {
    let served = Served::start();
    assert_eq!(served.ok(&["gc"]), "0 mended\n");
    assert_eq!(served.json(&["gc"])["quarantined"], 0);
}

#[test]
fn what_another_owns_is_taken_away_with_force_only_and_a_token_decides_who_may() {
    let home = Home::new();
    let tokens = home.file("tokens", "0123456789abcdef admin\nfedcba9876543210 team a\n");
    let (admin, team) = (
        home.file("admin", "0123456789abcdef"),
        home.file("team", "fedcba9876543210"),
    );
    let mut settings = Settings::default();
    settings.token_file = Some(tokens);
    let served = Served::with(home, settings);
    let token = |path: &std::path::Path| format!("--proxy-token-file={}", path.display());
    let (admin, team) = (token(&admin), token(&team));
    served.fails(
        77,
        &["partition", "create", "p", "--size", "4"],
        "Unauthenticated",
    );
    served.fails(
        77,
        &[&team, "partition", "create", "p", "--size", "4", "-n", "b"],
        "OutOfScope",
    );
    served.ok(&[&team, "partition", "create", "p", "--size", "4", "-n", "a"]);
    served.fails(77, &[&team, "gc"], "OutOfScope");
    served.ok(&[&admin, "gc"]);
    served.ok(&[&admin, "partition", "remove", "p", "--force"]);
    served.fails(66, &["--proxy-token-file=/nowhere", "gc"], "/nowhere");
}
