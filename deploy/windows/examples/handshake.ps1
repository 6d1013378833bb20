<#
.SYNOPSIS
Prepares this VM for events that azure-scheduled-events-exporter reports.

.DESCRIPTION
When an event file appears, this script runs prepare.ps1, which takes the VM out of service, and creates the ready file that
the event file names; the agent then approves. When the last event has ended, it runs resume.ps1, which brings the VM back. A
scheduled task (handshake.xml) runs this script from the start of Windows on. It checks the directory once a second, because
FileSystemWatcher can lose notifications, and the agent doesn't write events to the Event Log. See docs/handshake.md.

prepare.ps1 runs once for all current events, even if they change. If it fails, it runs again later; no ready file is created
before it succeeds.

Requires Windows PowerShell 5.1, which is part of Windows.
#>
param(
    [string] $Events = "$env:ProgramData\azure-scheduled-events-exporter\events",
    [string] $State = "$env:ProgramData\azure-scheduled-events-handshake",
    [string] $Prepare = "$PSScriptRoot\prepare.ps1",
    [string] $Resume = "$PSScriptRoot\resume.ps1",
    # Event types to prepare for although no rule waits.
    [string[]] $Also = @('Preempt', 'Terminate'),
    # Time limit of prepare.ps1 and resume.ps1; after it they count as failed.
    [int] $PrepareSeconds = 600,
    # Time between a failure and the next attempt.
    [int] $RetrySeconds = 30,
    # Events count as ended after this time without a new status.json.
    [int] $SilentSeconds = 900
)
Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'

$log = "$State\handshake.log"
$marks = "$State\requests"      # one file per event to prepare for; it contains the path of its ready file, if any
$begun = "$State\begun"         # prepare.ps1 was started, so resume.ps1 must run
$prepared = "$State\prepared"   # prepare.ps1 has succeeded
$bootFile = "$State\boot"       # the id of the boot in which this state is valid: a reboot undoes the preparation
$silence = 0
$lastStatus = ''
$pause = 0
$wanted = ''
$uncreated = ''

# If the log can't be renamed or written, because a reader has it open or the disk is full, drop the line and continue.
function Write-Log([string] $Text) {
    try {
        if ((Test-Path -LiteralPath $log) -and (Get-Item -LiteralPath $log).Length -gt 1000000) {
            Move-Item -LiteralPath $log -Destination "$log.1" -Force
        }
    } catch { $null = $_ }
    $line = '{0} {1}' -f [DateTime]::UtcNow.ToString('yyyy-MM-ddTHH:mm:ssZ'), $Text
    try { [IO.File]::AppendAllText($log, $line + [Environment]::NewLine) } catch { $null = $_ }
}

# Remove a file that marks this VM as prepared, or throw: the script then ends, and the task starts it again within a minute.
function Remove-Surely([string] $Path) {
    Remove-Item -LiteralPath $Path -Force -ErrorAction Ignore
    if (Test-Path -LiteralPath $Path) { throw "$Path can't be removed" }
}

# Throw if other accounts can change these directories: they could mark this VM as prepared, and so release an approval. These are
# the owners of a directory or its files and, with ProgramData's access list, all users. See docs/handshake.md.
function Assert-Own([string[]] $Paths) {
    $trusted = 'S-1-5-18', 'S-1-5-32-544', [Security.Principal.WindowsIdentity]::GetCurrent().User.Value
    foreach ($item in @(Get-Item -LiteralPath $Paths -Force) + @(Get-ChildItem -LiteralPath $Paths -Force)) {
        if ($item.Attributes -band [IO.FileAttributes]::ReparsePoint) { throw "$($item.FullName) is a link" }
        $owner = (Get-Acl -LiteralPath $item.FullName).GetOwner([Security.Principal.SecurityIdentifier]).Value
        if ($trusted -cnotcontains $owner) { throw "$($item.FullName) belongs to $owner" }
    }
    if (-not (Get-Acl -LiteralPath $State).AreAccessRulesProtected) { throw "$State inherits its access list" }
}

# Return the content of a file, or $null if it can't be read. The agent can replace or remove the file meanwhile.
function Read-Shared([string] $Path) {
    try {
        $stream = [IO.File]::Open($Path, [IO.FileMode]::Open, [IO.FileAccess]::Read, [IO.FileShare]'ReadWrite, Delete')
    } catch [IO.IOException], [UnauthorizedAccessException] {
        return $null
    }
    $reader = New-Object IO.StreamReader($stream)
    try { return $reader.ReadToEnd() } finally { $reader.Dispose() }
}

# Return the event that a file describes, or $null if it isn't an event file.
function Read-Event([string] $Path) {
    $text = Read-Shared $Path
    if (-not $text) { return $null }
    try { $content = ConvertFrom-Json -InputObject $text } catch { return $null }
    if ($content -isnot [Management.Automation.PSCustomObject]) { return $null }
    if ($content.PSObject.Properties.Name -notcontains 'type') { return $null }
    if ($content.type -cne 'azure_scheduled_events.event_file.v1') { return $null }
    return @{ Status = [string] $content.status; Ready = [string] $content.ready_file; Type = [string] $content.event_type }
}

# Return whether the agent has written status.json recently; it does so every 5 s. Counts passes, because the clock may be set.
function Test-Agent {
    $file = Get-Item -LiteralPath "$Events\status.json" -ErrorAction Ignore
    if ($file -and $file.LastWriteTimeUtc.Ticks.ToString() -ne $script:lastStatus) {
        if ($script:silence -ge $SilentSeconds) { Write-Log "the agent writes $Events\status.json again" }
        $script:lastStatus = $file.LastWriteTimeUtc.Ticks.ToString()
        $script:silence = 0
        return $true
    }
    $script:silence += 1
    if ($script:silence -eq $SilentSeconds) {
        Write-Log "the agent has not written $Events\status.json for $SilentSeconds passes; its events count as ended"
    }
    return $script:silence -lt $SilentSeconds
}

function Remove-Ready([string] $Mark) {
    $path = ([string] (Read-Shared $Mark)).Trim()
    if ($path) { Remove-Surely $path }
}

# Update the marks from the event files. Return the path of an event file that needs preparation, or ''. Only a Scheduled event is
# added: after the start there is nothing to prepare. It stays until it has ended.
function Update-Marks {
    $running = Test-Agent
    $files = @(Get-ChildItem -LiteralPath $Events -Filter '*.json' -File -ErrorAction Ignore)
    foreach ($file in $files) {
        if (-not $running -or $file.BaseName -notmatch '\A[A-Za-z0-9-]+\z' -or $file.BaseName -eq 'status') { continue }
        $found = Read-Event $file.FullName
        if (-not $found) { continue }
        $mark = "$marks\$($file.BaseName)"
        if (-not (Test-Path -LiteralPath $mark)) {
            if ($found.Status -cne 'Scheduled') { continue }
            if (-not $found.Ready -and $Also -cnotcontains $found.Type) { continue }
            [IO.File]::WriteAllText($mark, $found.Ready)
            Write-Log "$($file.BaseName): $($found.Type) is Scheduled"
        } elseif ($found.Ready -and $found.Ready -cne [string] (Read-Shared $mark)) {
            Remove-Ready $mark
            [IO.File]::WriteAllText($mark, $found.Ready)
        }
    }
    $pending = ''
    foreach ($mark in @(Get-ChildItem -LiteralPath $marks -File)) {
        $path = "$Events\$($mark.Name).json"
        if ($running -and (Test-Path -LiteralPath $path)) { $pending = $path; continue }
        Remove-Ready $mark.FullName
        Remove-Item -LiteralPath $mark.FullName -Force
        if ($running) { Write-Log "$($mark.Name): has ended" }
    }
    return $pending
}

function New-ReadyFile {
    foreach ($mark in @(Get-ChildItem -LiteralPath $marks -File)) {
        $path = ([string] (Read-Shared $mark.FullName)).Trim()
        if (-not $path -or (Test-Path -LiteralPath $path)) { continue }
        try {
            [IO.File]::WriteAllText($path, '')
            Write-Log "$($mark.Name): ready, $path"
        } catch {
            if ($script:uncreated -ne $path) {
                $script:uncreated = $path
                Write-Log "$($mark.Name): the ready file can't be created, so nothing is approved: $($_.Exception.Message)"
            }
        }
    }
}

# Run an operator's script, with its child processes, for at most $PrepareSeconds, and return whether it succeeded. prepare.ps1 is
# stopped when no event needs it.
function Invoke-Own([string] $What, [string] $Script, [string] $Argument) {
    $line = '-NoProfile -NonInteractive -ExecutionPolicy Bypass -File "{0}" {1}' -f $Script, $Argument
    $process = Start-Process -FilePath "$PSHOME\powershell.exe" -ArgumentList $line -WindowStyle Hidden -PassThru
    $null = $process.Handle # without it, ExitCode is empty
    $left = $PrepareSeconds
    while (-not $process.WaitForExit(1000)) {
        $left -= 1
        $pending = Update-Marks
        $reason = ''
        if ($What -eq 'prepare' -and -not $pending) { $reason = 'no event needs it' }
        if ($left -le 0) { $reason = "not finished after $PrepareSeconds s" }
        if ($reason) {
            & "$env:SystemRoot\System32\taskkill.exe" /PID $process.Id /T /F | Out-Null
            $process.WaitForExit()
            Write-Log "stopped ${What}: $reason"
            if ($left -le 0) { $script:pause = $RetrySeconds }
            return $false
        }
    }
    if ($process.ExitCode -eq 0) { return $true }
    Write-Log "$What failed with exit code $($process.ExitCode); next attempt in $RetrySeconds s"
    $script:pause = $RetrySeconds
    return $false
}

function Start-Absence([string] $EventFile) {
    Write-Log 'running prepare'
    [IO.File]::WriteAllText($begun, '')
    if (Invoke-Own 'prepare' $Prepare ('"{0}"' -f $EventFile)) {
        [IO.File]::WriteAllText($prepared, '')
        Write-Log 'prepared'
    }
}

function Stop-Absence {
    Write-Log 'running resume'
    Remove-Surely $prepared
    if (Invoke-Own 'resume' $Resume '') {
        Remove-Item -LiteralPath $begun -Force
        Write-Log 'resumed'
    }
}

Assert-Own $State
$null = New-Item -ItemType Directory -Path $marks -Force
Assert-Own $State, $marks
# The boot id of the Windows loader, KUSER_SHARED_DATA.BootId, which the agent uses too. The time of the boot would change with the
# clock. Without an id, every start of this script counts as a boot.
$boot = [Runtime.InteropServices.Marshal]::ReadInt32([IntPtr] 0x7FFE02C4).ToString()
if ($boot -eq '0' -or [string] (Read-Shared $bootFile) -cne $boot) {
    # Windows has started again, and so have the programs that were taken out of service. The loop below runs resume.ps1 if needed.
    foreach ($mark in @(Get-ChildItem -LiteralPath $marks -File)) {
        Remove-Ready $mark.FullName
        Remove-Item -LiteralPath $mark.FullName -Force
    }
    Remove-Surely $prepared
    [IO.File]::WriteAllText($bootFile, $boot)
}
while ($true) {
    $before = $wanted
    $pending = Update-Marks
    $wanted = if ($pending) { 'out' } else { 'in' }
    if ($wanted -ne $before) { $pause = 0 }
    if ($pending -and (Test-Path -LiteralPath $prepared)) {
        New-ReadyFile
    } elseif ($pause -le 0 -and $pending) {
        Start-Absence $pending
    } elseif ($pause -le 0 -and (Test-Path -LiteralPath $begun)) {
        Stop-Absence
    }
    $pause -= 1
    Start-Sleep -Seconds 1
}
