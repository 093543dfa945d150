//! Runs Postmark over the whole stack in virtual time:
//! `postmark LOAD SCALE FILESYSTEM SCHEDULER DEVICE DEPTH`.

use std::rc::Rc;

use bimetal_block::device::Device;
use bimetal_block::layers::queue::{QueueConfig, QueueLayer};
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::model::{ModelType, Parameters};
use bimetal_block::media::null::NullDevice;
use bimetal_lab::files::{CpuCosts, FileSystemKind, Files, FilesConfig, Program};
use bimetal_lab::workload::postmark::{NAMED, Tally};
use bimetal_policy::write_back::WriteMode;
use bimetal_rt::{Rng, Rt, VirtualOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let at = |n: usize, default: &str| args.get(n).cloned().unwrap_or(default.to_owned());
    let (load, scale) = (at(0, "SS"), at(1, "1").parse::<f64>()?);
    let (file_system, scheduler) = (at(2, "ext3"), at(3, "cfq"));
    let load = NAMED
        .iter()
        .find(|n| n.0 == load)
        .ok_or("no load")?
        .1
        .scaled(scale);
    let kind = FileSystemKind::ALL
        .iter()
        .find(|n| n.0 == file_system)
        .ok_or("no fs")?
        .1;
    let rt = Rt::virtual_time(VirtualOptions {
        seed: 1,
        shuffle: false,
    });
    let below = Rc::new(NullDevice::new(&rt, 64_000_000_000 / 4096 * 4096));
    let (of, profile) = match at(4, "hdd").as_str() {
        "ssd" => (ModelType::Ssd, "nvme-tlc"),
        _ => (ModelType::Hdd, "hdd-5400"),
    };
    let parameters = Parameters::from_profile(of, profile, toml::Table::new())?;
    let device: Rc<dyn Device> = Rc::new(Timing::new(&rt, below, &parameters, 1)?);
    let queue: QueueConfig = toml::from_str(&format!(
        "below = 'd'\nscheduler = '{scheduler}'\ntags = 8192\ndepth = {}\nplug = {{}}",
        at(5, "31")
    ))?;
    let queue = Rc::new(QueueLayer::new(&rt, device, &queue)?);
    let config = FilesConfig {
        kind,
        memory_pages: ((1u64 << 20) as f64 * scale) as u32,
        read_ahead_pages: 32,
        write_mode: WriteMode::Back,
        barriers: false,
        cpu: CpuCosts::default(),
    };
    let files = Files::new(&rt, Rc::clone(&queue), config);
    let tally = rt.block_on(async {
        let mut rng = Rng::new(42);
        let (mut program, mut tally) = (Program::new(0), Tally::default());
        let mut pool = load
            .prepare(&files, &mut rng, &mut program, &mut tally)
            .await?;
        files.pay(&mut program).await;
        println!("prepared at {:.2} s", rt.now().as_secs_f64());
        let begun = rt.now();
        for _ in 0..load.transactions {
            load.transact(&files, &mut pool, &mut rng, &mut program, &mut tally)
                .await?;
        }
        files.sync(&mut program).await;
        let seconds = rt.now().ns_since(begun) as f64 / 1e9;
        println!("{:.1} transactions/s", load.transactions as f64 / seconds);
        load.clean_up(&files, pool, &mut program).await?;
        files.sync(&mut program).await;
        Ok::<_, bimetal_lab::layer::LoadError>(tally)
    })?;
    println!(
        "{tally:?}\n{:?}\n{:?} at {:.2} s",
        queue.counts(),
        files.device_traffic(),
        rt.now().as_secs_f64()
    );
    rt.end();
    Ok(())
}
