//! A proxy that answers nonsense: jobs with IPUs say why they do not start, and nothing else suffers.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::cluster::{Cluster, PROXY_SOCKET};

/// Port of the proxy in the bed.
const PORT: u16 = 8080;
/// The answers, by job.
const ANSWERS: [fn(&mut TcpStream) -> std::io::Result<()>; 9] = [
    // None.
    |_| {
        thread::park();
        Ok(())
    },
    |stream| answer(stream, "200 OK", "text/html", "<html>hello</html>"),
    |stream| answer(stream, "200 OK", "application/json", "{}"),
    |stream| answer(stream, "200 OK", "application/json", r#"{"partitions":[{"id":"#),
    |stream| stream.write_all(&[0xff; 4_096]),
    |stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes())?;
        loop {
            stream.write_all(format!("1000\r\n{:4096}\r\n", "").as_bytes())?;
        }
    },
    |stream| {
        let head = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:8099/\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(head.as_bytes())
    },
    |stream| {
        let text = "oops\n\x1b[31mred AdminComment=x JobState=RUNNING";
        answer(stream, "500 Internal Server Error", "text/plain", text)
    },
    |stream| {
        let detail = r"A\nJobId=1 JobState=RUNNING ".repeat(400);
        let problem =
            format!(r#"{{"type": "x", "title": "t", "status": 503, "code": "Evil", "detail": "{detail}"}}"#);
        answer(stream, "503 x", "application/problem+json", &problem)
    },
];

fn answer(stream: &mut TcpStream, status: &str, kind: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes())
}

/// Answers one request. The id of the partition in its path begins with that of the job.
fn serve(mut stream: TcpStream) {
    let mut request = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while reader.read_line(&mut request).is_ok_and(|length| length > 2) {}
    let job = request
        .split_once("/p-slurm-")
        .and_then(|(_, rest)| rest.split('-').next());
    let job: usize = job.and_then(|job| job.parse().ok()).unwrap_or(1);
    // The hook may have given up.
    let _ = ANSWERS[(job - 1) % ANSWERS.len()](&mut stream);
}

#[test]
fn a_proxy_that_answers_nonsense_is_named_and_drains_no_node() {
    let Some(mut cluster) = Cluster::start("a_proxy_that_answers_nonsense_is_named_and_drains_no_node", 2)
    else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    cluster.bed.forward(PORT, listener.local_addr().unwrap().port());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    let path = cluster.bed.directory().join("etc/vipu.conf");
    let settings = fs::read_to_string(&path).unwrap();
    let url = format!("http://127.0.0.1:{PORT}");
    fs::write(&path, settings.replace(&format!("unix:{PROXY_SOCKET}"), &url)).unwrap();

    let jobs: Vec<String> = ANSWERS
        .iter()
        .map(|_| cluster.submit(&["--licenses=pod64:1"], "echo started"))
        .collect();
    let other = cluster.submit(&[], "echo started");
    cluster.wait_for_end(&other);
    assert_eq!(cluster.output(&other), "started\n");
    let sentence = format!("vipu: no IPUs within 2 s (WaitInProlog): the proxy {url} failed: ");
    for job in &jobs {
        cluster.bed.wait_until(&format!("job {job} names the proxy"), || {
            cluster.job_value(job, "AdminComment").starts_with(&sentence)
        });
        let comment = cluster.job_value(job, "AdminComment");
        assert!(
            comment.len() < 600 && !comment.contains(char::is_control),
            "{comment}"
        );
        assert_eq!(cluster.output(job), "");
    }
    let states = cluster.bed.node_states();
    assert!(states.iter().all(|state| !state.contains("drain")), "{states:?}");

    fs::write(&path, settings).unwrap();
    let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
    cluster.bed.succeed("scancel", &jobs);
    cluster.start_agent();
    cluster.bed.wait_until("no job is left", || {
        cluster.bed.job_ids().is_empty() && cluster.files().is_empty()
    });
    let job = cluster.submit(&["--licenses=pod64:64"], "env | grep PARTITION_ID");
    cluster.wait_for_line(&job, "IPUOF_VIPU_API_PARTITION_ID=p-slurm-");
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}
