//! `podperf-load`: runs one load and prints its truth as one line of JSON.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use podperf_tests::load::{
    blocked, calls, causes, churn, cpu, crowd, descriptors, faults, flood, hoard, hog, instructions, lives, locks,
    mixed, moved, paths, repeat, ring, sites, sleepers, storm, thicket, turns, wakeups,
};
use podperf_tests::process;
use serde::Serialize;

/// Loads with a known truth, for podperf's tests and benchmarks
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    load: Load,
}

#[derive(Debug, Subcommand)]
enum Load {
    /// Pass a byte round a ring of processes on one CPU
    Ring(ring::RingArgs),
    /// Burn CPU time in a cgroup
    Spin(cpu::SpinArgs),
    /// Burn CPU time under SCHED_FIFO, without a switch
    Fifo(cpu::FifoArgs),
    /// Fork a child that joins a cgroup and then burns
    Forkjoin(cpu::ForkJoinArgs),
    /// Wait again and again in the given way
    Blocked(blocked::BlockedArgs),
    /// Make system calls with known errnos, in processes that go from CPU to CPU
    Calls(calls::CallsArgs),
    /// Lose time for a known cause, or have nothing to do, until stdin has a line or ends
    Causes(causes::CausesArgs),
    /// Read from a pipe often and soon, and from a socket seldom and late, by one call
    Descriptors(descriptors::DescriptorsArgs),
    /// Fork children that burn CPU time for some milliseconds, several at a time
    Lives(lives::LivesArgs),
    /// Wait for locks that another process holds
    Locks(locks::LocksArgs),
    /// Burn and sleep in turn
    Mixed(mixed::MixedArgs),
    /// Wait in many threads at sixteen places of known names, shortly and long
    Sites(sites::SitesArgs),
    /// Wait, with a user stack of known names
    Sleepers(sleepers::SleepersArgs),
    /// Wait deep down in many threads, each time with another stack
    Thicket(thicket::ThicketArgs),
    /// Wait in two functions in turn, on two stacks of one call site
    Turns(turns::TurnsArgs),
    /// Wake in pairs of threads, at a rate that is kept
    Wakeups(wakeups::WakeupsArgs),
    /// Take a known number of page faults and voluntary switches
    Faults(faults::FaultsArgs),
    /// Send packets to itself, each received in a soft interrupt
    Flood(flood::FloodArgs),
    /// Burn while another process moves the burner between cgroups
    Moved(moved::MovedArgs),
    /// Wait or spin on stacks without frame pointers that the program notes itself
    Paths(paths::PathsArgs),
    /// Make one call again and again
    Repeat(repeat::RepeatArgs),
    /// Retire a known number of instructions
    Loop(instructions::LoopArgs),
    /// Make short-lived cgroups, one after another
    Churn(churn::ChurnArgs),
    /// Make processes as fast as possible; each waits once
    Storm(storm::StormArgs),
    /// Touch more and more memory until the time is over
    Hoard(hoard::HoardArgs),
    /// Take counters of every CPU, so that no other program has them, until stdin ends
    Hog(hog::HogArgs),
    /// Keep a tiny task in each of many cgroups
    Crowd(crowd::CrowdArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "podperf-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    process::die_with_parent()?;
    match cli.load {
        Load::Ring(args) => report(&ring::run(&args)?),
        Load::Spin(args) => {
            report(&cpu::spin(&args)?)?;
            cpu::finish_spin(&args)
        }
        Load::Fifo(args) => {
            report(&cpu::fifo(&args)?)?;
            if args.hold { cpu::hold() } else { Ok(()) }
        }
        Load::Blocked(args) => report(&blocked::run(&args)?),
        Load::Calls(args) => report(&calls::run(&args)?),
        Load::Causes(args) => report(&causes::run(&args)?),
        Load::Descriptors(args) => report(&descriptors::run(&args)?),
        Load::Hoard(args) => report(&hoard::run(&args)?),
        Load::Lives(args) => report(&lives::run(&args)?),
        Load::Locks(args) => report(&locks::run(&args)?),
        Load::Mixed(args) => report(&mixed::run(&args)?),
        Load::Sites(args) => report(&sites::run(&args)?),
        Load::Forkjoin(args) => report(&cpu::fork_join(&args)?),
        Load::Sleepers(args) => {
            report(&sleepers::run(&args)?)?;
            if args.hold { cpu::hold() } else { Ok(()) }
        }
        Load::Thicket(args) => report(&thicket::run(&args)?),
        Load::Turns(args) => {
            report(&turns::run(&args)?)?;
            if args.hold { cpu::hold() } else { Ok(()) }
        }
        Load::Wakeups(args) => report(&wakeups::run(&args)?),
        Load::Faults(args) => report(&faults::run(&args)?),
        Load::Flood(args) => report(&flood::run(&args)?),
        Load::Moved(args) => report(&moved::run(&args)?),
        Load::Paths(args) => {
            report(&paths::run(&args)?)?;
            if args.hold { cpu::hold() } else { Ok(()) }
        }
        Load::Repeat(args) => report(&repeat::run(&args)?),
        Load::Loop(args) => report(&instructions::run(&args)?),
        Load::Churn(args) => report(&churn::run(&args)?),
        Load::Storm(args) => report(&storm::run(&args)?),
        Load::Hog(args) => {
            let (_taken, truth) = hog::take(args)?;
            report(&truth)?;
            cpu::hold()
        }
        Load::Crowd(args) => {
            let (crowd, truth) = crowd::gather(args)?;
            report(&truth)?;
            crowd::stay(crowd)
        }
    }
}

fn report<T: Serialize>(truth: &T) -> Result<()> {
    let mut line = serde_json::to_vec(truth)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}
