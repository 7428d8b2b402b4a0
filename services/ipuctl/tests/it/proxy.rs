//! `ipuctl --proxy URL` with a proxy and a simulated controller of 32 IPUs.

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use vipu_proxy::{Proxy, Settings};

use crate::harness::{Finished, Home, Running, job};

/// A proxy, and the home directory of a user.
pub(crate) struct ProxyFixture {
    home: Home,
    pub(crate) url: String,
    runtime: Runtime,
    proxy: Option<Proxy>,
}

impl ProxyFixture {
    pub(crate) fn start() -> Self {
        Self::with(Home::new(), Settings::default())
    }

    fn with(home: Home, overrides: Settings) -> Self {
        let mut settings = Settings::simulated("1x8");
        if overrides.controllers.is_some() {
            (settings.sim, settings.sim_delay_ms, settings.sim_listen) = (None, None, None);
        }
        let socket = overrides.listen.clone();
        let runtime = Runtime::new().unwrap();
        let config = overrides.or(settings).check().unwrap();
        let proxy = runtime.block_on(Proxy::start(config)).unwrap();
        let url = socket.map_or_else(|| format!("http://{}", proxy.addr()), |socket| socket.to_string());
        Self {
            home,
            url,
            runtime,
            proxy: Some(proxy),
        }
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["--proxy", &self.url], arguments].concat()
    }

    /// Starts a command that does not end by itself.
    pub(crate) fn start_command(&self, arguments: &[&str]) -> Running {
        Running::start(self.home.command(&self.arguments(arguments)))
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        self.home.run(&self.arguments(arguments))
    }

    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        assert_eq!(done.code, 0, "{arguments:?}: {done:?}");
        done.out
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        self.home.json(&self.arguments(arguments))
    }

    #[track_caller]
    fn fails(&self, code: i32, arguments: &[&str], message: &str) {
        let done = self.run(arguments);
        assert_eq!(done.code, code, "{arguments:?}: {done:?}");
        assert!(done.err.contains(message), "{arguments:?}: {done:?}");
    }
}

impl ProxyFixture {
    /// Stops the proxy.
    pub(crate) fn stop(&mut self) {
        if let Some(proxy) = self.proxy.take() {
            self.runtime.block_on(proxy.shutdown());
        }
    }
}

impl Drop for ProxyFixture {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn the_exit_code_tells_the_cause_of_a_failure() {
    let fixture = ProxyFixture::start();
    fixture.ok(&["partition", "create", "all", "--size", "32"]);
    fixture.fails(
        75,
        &["partition", "create", "more", "--size", "4", "--no-wait"],
        "partition more does not fit now: 4 IPUs requested, 0 free",
    );
    assert_eq!(fixture.run(&["query", "4"]).code, 75);
    fixture.fails(
        78,
        &["partition", "create", "huge", "--size", "64"],
        "partition huge can never fit: 64 IPUs requested, the largest possible partition is",
    );
    assert_eq!(fixture.json(&["waiting"]), json!([]));
    fixture.fails(64, &["map"], "simulated IPU-POD only");
    fixture.fails(64, &["stats", "-o", "csv"], "usage");
    fixture.fails(64, &["--vipu", "pod1", "stats"], "exclude each other");
    let unreachable = fixture.home.run(&["--proxy", "http://127.0.0.1:1", "stats"]);
    assert!(
        unreachable.code == 69 && unreachable.err.contains("cannot reach"),
        "{unreachable:?}"
    );
}

#[test]
fn a_queued_request_shows_its_blockers_and_leaves_the_queue_when_interrupted() {
    let fixture = ProxyFixture::start();
    fixture.ok(&["partition", "create", "all", "--size", "32"]);
    let command = fixture
        .home
        .command(&fixture.arguments(&["partition", "create", "more", "--size", "4"]));
    let mut running = Running::start(command);
    let text = running.wait_for("Queued at position 1: 4 IPUs requested, 0 free; blocked by ");
    assert!(text.ends_with("/all"), "{text}");
    let queue = fixture.ok(&["waiting"]);
    assert!(
        queue.contains("more")
            && !queue.contains("Queued at position")
            && queue.contains("4 IPUs requested, 0 free"),
        "{queue}"
    );
    // A repeated request with `--no-wait` fails and leaves the queued one.
    fixture.fails(
        75,
        &["partition", "create", "more", "--size", "4", "--no-wait"],
        "partition more does not fit now: 4 IPUs requested, 0 free",
    );
    assert_eq!(fixture.json(&["waiting"])[0]["id"], "more");
    running.signal("-INT");
    let (code, output) = running.end();
    assert_eq!(code, 130, "{output:?}");
    assert_eq!(fixture.json(&["waiting"]), json!([]));
}

#[test]
fn the_exit_code_of_drain_tells_whether_partitions_remain() {
    let fixture = ProxyFixture::start();
    fixture.ok(&["partition", "create", "all", "--size", "32"]);
    let controllers = fixture.ok(&["controllers"]);
    assert!(controllers.contains("available  0"), "{controllers}");
    let drain = ["drain", "a1", "--reason", "a fan is broken", "--wait-for", "0"];
    fixture.fails(75, &drain, "remains cordoned");
    fixture.fails(75, &drain, "In use: all (");
    let cordoned = fixture.json(&["cordon", "a1", "--reason", "a fan is broken"]);
    assert_eq!(cordoned["holders"][0]["id"], "all", "{cordoned}");
    fixture.ok(&["partition", "remove", "all"]);
    fixture.ok(&drain);
    fixture.fails(
        75,
        &["partition", "create", "all", "--size", "32", "--no-wait"],
        "partition all does not fit now",
    );
    assert!(fixture.ok(&["uncordon", "a1"]).contains("a1 uncordoned"));
    assert!(fixture.ok(&["uncordon", "a1"]).contains("was not cordoned"));
    fixture.ok(&["partition", "create", "all", "--size", "32", "--no-wait"]);
}

#[test]
fn usage_prints_one_line_for_each_hold() {
    let fixture = ProxyFixture::start();
    fixture.ok(&["partition", "create", "p", "--size", "8"]);
    fixture.ok(&["partition", "remove", "p"]);
    let text = fixture.ok(&["usage", "--since", "1h", "-o", "csv"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("id,kind,namespace,name,uid,"), "{text}");
    assert!(
        lines[1].starts_with("p,User,") && lines[1].ends_with(",released"),
        "{text}"
    );
    assert_eq!(lines.len(), 2);
    assert_eq!(fixture.json(&["usage"])["records"][0]["size"], 8);
    assert_eq!(
        fixture.json(&["usage", "--since", "2999-01-01"])["records"],
        json!([])
    );
    fixture.fails(64, &["usage", "--since", "yesterday"], "7d");
    let text = fixture.ok(&["usage", "--by", "account", "-o", "csv"]);
    assert!(text.starts_with("account,holds,ipuSeconds\n,1,"), "{text}");
    let totals = fixture.json(&["usage", "--by", "month"]);
    assert_eq!(
        (&totals["by"], &totals["totals"][0]["holds"]),
        (&json!("month"), &json!(1))
    );
}

#[test]
fn a_plan_evaluates_the_release_of_other_partitions() {
    let fixture = ProxyFixture::start();
    fixture.ok(&["partition", "create", "half", "--size", "16"]);
    let plan = fixture.run(&["plan", "--size", "16,16"]);
    assert_eq!(plan.code, 75, "{plan:?}");
    fixture.ok(&["plan", "--size", "16,16", "--if-ended", "half"]);
    assert_eq!(fixture.run(&["plan", "--size", "64"]).code, 78);
    let file = fixture.home.file("job.yaml", &job("mnist", 32, "true"));
    let file = file.to_str().unwrap();
    let done = fixture.run(&["plan", file]);
    assert!(done.code == 75 && done.out.contains("Would wait: "), "{done:?}");
    let text = fixture.ok(&["plan", file, "--if-ended", "half"]);
    assert!(text.contains("Fits now. "), "{text}");
    let planned = fixture.json(&["plan", "--size", "8"]);
    assert_eq!(planned["planned"][0]["fits"], true, "{planned}");
}

#[test]
fn repair_and_gc_find_nothing_to_do_at_a_settled_proxy() {
    let fixture = ProxyFixture::start();
    assert_eq!(fixture.ok(&["repair"]), "0 repairs\n");
    assert_eq!(fixture.json(&["repair"])["quarantined"], 0);
    assert_eq!(fixture.ok(&["gc"]), "0 processes ended, 0 partitions released\n");
}

#[test]
fn a_job_runs_through_a_proxy_with_a_lease() {
    let fixture = ProxyFixture::start();
    let script = "echo on $IPUOF_VIPU_API_PARTITION_ID; while [ ! -e gate ]; do sleep 0.05; done";
    let file = fixture.home.file("job.yaml", &job("remote", 4, script));
    let directory = format!(
        "workers.template.spec.containers[0].workingDir={}",
        fixture.home.path("").display()
    );
    let arguments = ["run", file.to_str().unwrap(), "--set", &directory];
    let mut run = Running::start(fixture.home.command(&fixture.arguments(&arguments)));
    run.wait_for("worker-0 | on p-remote-0-");
    let partition = fixture.json(&["partition", "list"])[0].clone();
    assert_eq!(partition["owner"]["kind"], "HostRun", "{partition}");
    assert!(partition["leaseUntil"].is_number(), "{partition}");
    assert_eq!(fixture.json(&["list"])[0]["phase"], "Running");
    fixture.home.file("gate", "");
    let (code, output) = run.end();
    assert_eq!(code, 0, "{output:#?}");
    assert_eq!(fixture.json(&["partition", "list"]), json!([]));
    assert_eq!(fixture.json(&["list"])[0]["phase"], "Completed");
}

#[test]
fn gc_releases_the_partition_of_a_killed_run_at_its_proxy() {
    let fixture = ProxyFixture::start();
    let file = fixture
        .home
        .file("job.yaml", &job("killed", 4, "echo ready; exec sleep 600"));
    let arguments = fixture.arguments(&["run", file.to_str().unwrap()]);
    let mut run = Running::start(fixture.home.command(&arguments));
    run.wait_for("worker-0 | ready");
    run.process.kill().unwrap();
    run.process.wait().unwrap();
    // The local server has no such partition.
    assert_eq!(fixture.home.run(&["gc"]).code, 0);
    assert_eq!(fixture.json(&["partition", "list"]).as_array().unwrap().len(), 1);
    fixture.ok(&["gc"]);
    assert_eq!(fixture.json(&["partition", "list"]), json!([]));
    run.end();
    assert_eq!(fixture.home.processes(), Vec::<String>::new());
}

#[test]
fn a_run_on_another_host_that_shares_the_home_directory_keeps_its_partition() {
    let fixture = ProxyFixture::start();
    let file = fixture
        .home
        .file("job.yaml", &job("shared", 4, "echo ready; exec sleep 600"));
    let arguments = fixture.arguments(&["run", file.to_str().unwrap()]);
    let mut run = Running::start(fixture.home.command(&arguments));
    run.wait_for("worker-0 | ready");
    // The other host has another boot id.
    let runs = fixture.home.path(".local/state/ipuctl/runs");
    let directory = std::fs::read_dir(&runs).unwrap().next().unwrap().unwrap().path();
    let name = directory.file_name().unwrap().to_str().unwrap();
    let mut parts: Vec<&str> = name.split('_').collect();
    parts[1] = "00000000-0000-4000-8000-000000000000";
    std::fs::rename(&directory, runs.join(parts.join("_"))).unwrap();
    assert_eq!(fixture.ok(&["gc"]), "0 processes ended, 0 partitions released\n");
    assert_eq!(fixture.json(&["partition", "list"])[0]["state"], "active");
    assert_eq!(fixture.json(&["list"])[0]["phase"], "Running");

    // It was killed, and its lease is over.
    run.process.kill().unwrap();
    run.process.wait().unwrap();
    let id = fixture.json(&["partition", "list"])[0]["id"].clone();
    fixture.ok(&["partition", "remove", id.as_str().unwrap(), "--force"]);
    fixture.ok(&["gc"]);
    // A run that has begun lately may not have requested its partition yet.
    let directory = std::fs::read_dir(&runs).unwrap().next().unwrap().unwrap().path();
    let directory = std::fs::File::open(directory).unwrap();
    directory.set_modified(std::time::UNIX_EPOCH).unwrap();
    fixture.ok(&["gc"]);
    assert_eq!(std::fs::read_dir(&runs).unwrap().count(), 0);
    run.end();
    assert_eq!(fixture.home.processes(), Vec::<String>::new());
}

#[test]
fn a_foreign_partition_is_removed_with_force_by_an_admin_token_only() {
    let home = Home::new();
    let tokens = home.file("tokens", "0123456789abcdef admin\nfedcba9876543210 team a\n");
    let (admin, team) = (
        home.file("admin", "0123456789abcdef"),
        home.file("team", "fedcba9876543210"),
    );
    let mut settings = Settings::default();
    settings.token_file = Some(tokens);
    let socket = home.file("socket", "");
    std::fs::remove_file(&socket).unwrap();
    settings.listen = Some(format!("unix:{}", socket.display()).parse().unwrap());
    let fixture = ProxyFixture::with(home, settings);
    let token = |path: &std::path::Path| format!("--proxy-token-file={}", path.display());
    let (admin, team) = (token(&admin), token(&team));
    fixture.fails(
        77,
        &[&team, "partition", "create", "p", "--size", "4", "-n", "b"],
        "OutOfScope",
    );
    fixture.ok(&[&team, "partition", "create", "p", "--size", "4", "-n", "a"]);
    fixture.fails(77, &[&team, "repair"], "OutOfScope");
    fixture.ok(&[&admin, "repair"]);
    fixture.ok(&[&admin, "partition", "remove", "p", "--force"]);
    fixture.fails(66, &["--proxy-token-file=/nowhere", "repair"], "/nowhere");
}

#[test]
fn a_token_is_not_sent_to_a_port_that_any_user_of_the_host_may_take() {
    let home = Home::new();
    let tokens = home.file("tokens", "0123456789abcdef admin\n");
    let admin = home.file("admin", "0123456789abcdef");
    let mut settings = Settings::default();
    settings.token_file = Some(tokens);
    let fixture = ProxyFixture::with(home, settings);
    fixture.fails(77, &["repair"], "Unauthenticated");
    let token = format!("--proxy-token-file={}", admin.display());
    fixture.fails(69, &[&token, "repair"], "use unix:PATH");
}

#[test]
fn a_cordon_is_shown_with_its_owner_and_its_reason() {
    let fixture = ProxyFixture::start();
    let cordoned = fixture.ok(&["cordon", "a1", "--reason", "a fan is broken"]);
    assert!(
        cordoned.ends_with("a1 cordoned by anonymous: a fan is broken\n"),
        "{cordoned}"
    );
    let plan = fixture.run(&["plan", "--size", "32"]);
    assert!(
        plan.code == 75 && plan.out.contains("4 cordoned by anonymous: a fan is broken"),
        "{plan:?}"
    );
    fixture.fails(
        77,
        &["cordon", "a1", "--reason", "new firmware"],
        "a1 is already cordoned by anonymous: a fan is broken",
    );
    // Like `kubectl drain`, it accepts hardware that is cordoned for another reason.
    fixture.ok(&["drain", "a1", "--reason", "new firmware"]);
}

#[test]
fn cordons_are_listed_in_every_format() {
    let fixture = ProxyFixture::start();
    let empty = fixture.run(&["cordons"]);
    assert_eq!(
        (empty.code, empty.out.as_str(), empty.err.as_str()),
        (0, "", "No cordons found.\n")
    );
    assert_eq!(fixture.json(&["cordons"]), json!([]));
    fixture.ok(&["cordon", "a1/2", "--id", "ecc", "--reason", "ECC errors, twice"]);
    fixture.ok(&["cordon", "a2", "--id", "fan", "--reason", "a fan is broken"]);
    let table = fixture.ok(&["cordons"]);
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[0],
        ["NAME", "CONTROLLER", "MACHINE", "IPU", "OWNER", "AGE", "REASON"]
    );
    assert_eq!(
        (rows[1][0], rows[1][2], rows[1][3]),
        ("ecc", "a1", "2"),
        "{table}"
    );
    assert_eq!(rows[2][2..5], ["a2", "-", "anonymous"], "{table}");
    assert!(table.ends_with("  a fan is broken\n"), "{table}");
    assert_eq!(fixture.ok(&["cordons", "-o", "name"]), "ecc\nfan\n");
    let csv = fixture.ok(&["cordons", "-o", "csv"]);
    assert!(
        csv.starts_with("id,controller,machine,ipu,owner,reason,since\necc,"),
        "{csv}"
    );
    assert!(csv.contains(",a1,2,anonymous,\"ECC errors, twice\","), "{csv}");
    assert_eq!(fixture.json(&["cordons"])[1]["reason"], "a fan is broken");
    assert!(fixture.ok(&["cordons", "-o", "yaml"]).contains("id: fan"));
}

#[test]
fn an_invalid_cordon_is_reported_with_its_value_and_the_accepted_forms() {
    let fixture = ProxyFixture::start();
    fixture.fails(65, &["cordon", "a1", "--reason", ""], "reason = \"\": must be");
    let long = "x".repeat(300);
    fixture.fails(65, &["cordon", "a1", "--reason", &long], "xxx… (300 bytes)\"");
    fixture.fails(
        64,
        &["cordon", "foo/bar/baz/qux", "--reason", "test"],
        "use CONTROLLER, CONTROLLER/MACHINE or CONTROLLER/MACHINE/IPU, such as pod1:8090/a1/2; if there is one \
         controller, also MACHINE or MACHINE/IPU\n",
    );
    fixture.fails(64, &["uncordon"], "uncordon requires TARGET or --id\n");
}

#[test]
fn a_query_without_an_available_controller_has_no_number() {
    let mut settings = Settings::default();
    let home = Home::new();
    settings.controllers = Some("127.0.0.1:1".into());
    settings.store = Some(format!("file:{}", home.path("proxy.db").display()));
    let fixture = ProxyFixture::with(home, settings);
    let query = fixture.run(&["query", "2"]);
    assert_eq!(
        (query.code, query.out.as_str()),
        (
            69,
            "The number of partitions of 2 IPUs that fit is unknown: no controller is available\n"
        ),
        "{query:?}"
    );
}
