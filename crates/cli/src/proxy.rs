//! `bimetal proxy`: offers an export of a BRP target to any NBD client, until a signal. The BRP
//! session survives broken connections and restarts of the target, which an NBD session would not.

use std::io::Write;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow};
use bimetal_block::Device;
use bimetal_block::media::brp::{BrpConfig, BrpDevice};
use bimetal_block::units::{Size, Time, parse_size, parse_time};
use bimetal_export::{ExportConfig, Server};
use bimetal_rt::net::Address;
use bimetal_rt::real_time::Signals;
use bimetal_rt::{Rt, UringOptions};

use crate::alerts;
use crate::logged::{self, Log};
use crate::runtime;
use crate::tls::TlsArgs;

/// Size of the memory for the buffers of requests.
const POOL_BYTES: usize = 64 << 20;

/// Arguments of the verb `proxy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address of the target, `unix:PATH`, `tcp:ADDRESS:PORT` or `rdma:ADDRESS:PORT`; if several
    /// addresses of the same target are given, they are used in turn
    #[arg(value_name = "TARGET", required = true)]
    target: Vec<Address>,
    /// Name of the export [default: the target's default export]
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    export: String,
    /// Address to listen on for NBD clients, `unix:PATH` or `tcp:ADDRESS:PORT`
    #[arg(long, value_name = "ADDRESS")]
    listen: Address,
    /// Number of connections to the target
    #[arg(long, value_name = "N", default_value = "1")]
    connections: u32,
    /// Protect every request and its data with a CRC from end to end
    #[arg(long)]
    crc: bool,
    /// Time for which requests wait for an unreachable target
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    reconnect: Time,
    /// Memory for copies of changes that are not yet durable on the target
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    keep: Size,
    #[command(flatten)]
    tls: TlsArgs,
}

impl Args {
    fn medium(&self) -> Result<BrpConfig> {
        let first = self.target.first().context("a target has an address")?;
        let config = BrpConfig {
            address: self.target.clone(),
            export: self.export.clone(),
            connections: self.connections,
            crc: self.crc,
            reconnect: self.reconnect,
            keep: self.keep,
            tls: self.tls.config(),
            ..BrpConfig::new(first.clone())
        };
        config.check().map_err(|why| anyhow!("{why}"))?;
        Ok(config)
    }

    /// Returns the name under which NBD clients find the export.
    fn name(&self) -> &str {
        if self.export.is_empty() {
            "default"
        } else {
            &self.export
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let medium = args.medium()?;
    logged::start(Log::Text);
    let rt = runtime::start(UringOptions {
        pool_bytes: POOL_BYTES,
        ..UringOptions::default()
    })?;
    rt.block_on(serve(&rt, args, &medium))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(rt: &Rt, args: &Args, medium: &BrpConfig) -> Result<()> {
    let signals = Signals::of_server(rt).context("cannot set up signal handling")?;
    let device = Rc::new(BrpDevice::open(rt, medium).await?);
    device.geometry().check_whole()?;
    let export = ExportConfig::new(args.name(), "far", args.listen.clone());
    let exports = vec![(export, Rc::clone(&device) as Rc<dyn Device>)];
    let server = match Server::start(rt, exports).await {
        Ok(server) => server,
        Err(error) => {
            // No request has been served yet, so the close loses no data.
            return device
                .close()
                .await
                .map_err(anyhow::Error::from)
                .and(Err(error.into()));
        }
    };
    let notices = alerts::watch_notices(rt.clone(), alerts::Teller::start(None, Log::Text));
    let notices = rt.spawn(notices);
    let mut out = std::io::stdout();
    // A failed write is ignored, because the parent process possibly does not read standard output.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
    let waited = signals.next().await.context("cannot wait for signals");
    server.stop().await;
    notices.cancel().await;
    device
        .close()
        .await
        .context("the writes of clients may not be durable")?;
    waited.map(|_| ())
}
