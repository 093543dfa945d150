//! Serves a memory device of 1 GiB on the UNIX socket named on the command line (or on
//! `tcp:ADDRESS:PORT`), for benchmarks against other servers. The protocol is NBD or, if `brp`
//! follows the address, BRP. The server ends on SIGTERM or SIGINT.

use std::process::ExitCode;
use std::rc::Rc;

use bimetal_block::Device;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_export::{ExportConfig, Protocol, Server};
use bimetal_rt::real_time::Signals;
use bimetal_rt::{Rt, UringOptions};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args()
        .nth(1)
        .ok_or("usage: serve_memory unix:PATH [brp]")?;
    let rt = Rt::real_time(UringOptions::default())?;
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, 1 << 30));
    let mut config = ExportConfig::new("memory", "memory", address.parse()?);
    if std::env::args().nth(2).as_deref() == Some("brp") {
        config.protocol = Protocol::Brp;
    }
    rt.block_on(async {
        let signals = Signals::termination(&rt)?;
        let server = Server::start(&rt, vec![(config, device)]).await?;
        println!("ready");
        signals.next().await?;
        server.stop().await;
        Ok(())
    })
}
