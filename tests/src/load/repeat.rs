//! One call again and again, and nothing else: for the cost of what watches such calls.

#![expect(unsafe_code, reason = "a function that keeps its name")]

use std::{
    fs::{self, File},
    hint::black_box,
    io::{Read as _, Write as _},
};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use nix::{pty::openpty, unistd::getppid};
use serde::{Deserialize, Serialize};

use crate::process;

/// The symbol of the function that [`Repeated::Function`] calls.
pub const FUNCTION: &str = "podperf_repeated";

/// `podperf-load repeat`.
#[derive(Args, Clone, Debug)]
pub struct RepeatArgs {
    /// The call
    #[arg(long)]
    pub what: Repeated,
    /// Number of calls
    #[arg(long, default_value_t = 1_000_000)]
    pub times: u32,
    /// CPU to stay on
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// The calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Repeated {
    /// The system call getppid
    Getppid,
    /// A read of a byte of `/dev/zero`
    Read,
    /// A function of this program
    Function,
    /// A write of a byte to a terminal and a read at its other end: the kernel hands it over in a work item
    Terminal,
}

/// The program's measurements of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RepeatReport {
    /// Wall time of all calls without the time in which the program waited for a CPU. Interrupts are a part of it.
    pub on_cpu_ns: u64,
    /// The place of [`FUNCTION`] in the program's file.
    pub place: u64,
}

/// Makes all calls.
pub fn run(args: &RepeatArgs) -> Result<RepeatReport> {
    if let Some(cpu) = args.cpu {
        process::pin(cpu)?;
    }
    let on_cpu_ns = process::wall_without_queue_ns(|| {
        match args.what {
            Repeated::Getppid => {
                for _ in 0..args.times {
                    black_box(getppid());
                }
            }
            Repeated::Read => {
                let (mut zero, mut byte) = (File::open("/dev/zero")?, [0]);
                for _ in 0..args.times {
                    zero.read_exact(&mut byte)?;
                }
            }
            Repeated::Function => {
                for time in 0..args.times {
                    black_box(podperf_repeated(black_box(time)));
                }
            }
            Repeated::Terminal => {
                let ends = openpty(None, None).context("failed to open a terminal")?;
                let (mut reader, mut writer) = (File::from(ends.master), File::from(ends.slave));
                let mut byte = [0];
                for _ in 0..args.times {
                    writer.write_all(b"x")?;
                    reader.read_exact(&mut byte)?;
                }
            }
        }
        Ok(())
    })?;
    let function = podperf_repeated as *const ();
    Ok(RepeatReport { on_cpu_ns, place: place_in_file(u64::try_from(function.addr())?)? })
}

/// Does nothing. Its symbol is its name.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn podperf_repeated(time: u32) -> u32 {
    black_box(time)
}

/// Returns the place of an address in the file that is mapped there.
fn place_in_file(address: u64) -> Result<u64> {
    let maps = fs::read_to_string("/proc/self/maps").context("failed to read `/proc/self/maps`")?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let place = maps.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (begin, end) = fields.next()?.split_once('-')?;
        // The rights come first.
        let offset = number(fields.nth(1)?)?;
        let (begin, end) = (number(begin)?, number(end)?);
        (begin..end).contains(&address).then(|| address - begin + offset)
    });
    place.context("no mapping has the function")
}
