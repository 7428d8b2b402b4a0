//! Forwards of TCP ports of a bed to ports of this machine.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Forwards connections to `port` on the loopback interface of a network namespace to `target` on that of
/// this machine, until this process ends.
pub(crate) fn forward(namespace: PathBuf, port: u16, target: u16) -> io::Result<()> {
    // A thread of its own: it changes its namespace, and sockets keep the namespace that made them.
    let bind = move || {
        let namespace = File::open(namespace)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port))
    };
    let listener = thread::spawn(bind)
        .join()
        .map_err(|_| io::Error::other("the thread has panicked"))??;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || serve(client, target));
        }
    });
    Ok(())
}

/// Copies both directions of a connection. Either end may be gone.
fn serve(client: TcpStream, target: u16) {
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else {
        return;
    };
    let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    thread::spawn(move || copy(from_client, to_server));
    copy(server, client);
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
