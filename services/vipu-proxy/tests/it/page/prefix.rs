//! A reverse proxy that removes a prefix of the path and replaces the host, as the API server of Kubernetes
//! does.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Serves the proxy at `url` under `prefix`, each request on its own connection. Returns the address.
pub(super) async fn serve_under_prefix(url: &str, prefix: &'static str) -> String {
    let target = url.trim_start_matches("http://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            tokio::spawn(forward(client, target.clone(), prefix));
        }
    });
    format!("http://{address}{prefix}")
}

/// Forwards one request. A client that closes the connection ends it.
async fn forward(client: TcpStream, target: String, prefix: &str) -> Option<()> {
    let mut client = BufReader::new(client);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if client.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        if lower.starts_with("host:") {
            line = "host: 127.0.0.1:1\r\n".to_owned();
        }
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    let head = head.replacen(&format!(" {prefix}"), " ", 1);
    let mut body = vec![0; length];
    client.read_exact(&mut body).await.ok()?;
    let mut server = TcpStream::connect(target).await.ok()?;
    server
        .write_all(format!("{head}connection: close\r\n\r\n").as_bytes())
        .await
        .ok()?;
    server.write_all(&body).await.ok()?;
    tokio::io::copy_bidirectional(&mut client, &mut server)
        .await
        .ok()?;
    Some(())
}
