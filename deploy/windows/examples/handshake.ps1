<#
.SYNOPSIS
The handshake with azure-scheduled-events-exporter on Windows.

.DESCRIPTION
An event file appears, prepare.ps1 takes this VM out of service, the ready file that the event file names is made, and the
agent approves; when the last event is over, resume.ps1 brings the VM back. A scheduled task (handshake.xml) runs this from
the start of Windows on. It looks at the folder once a second: the notices of a FileSystemWatcher can be lost, and the agent
writes nothing about events into the Event Log. docs/handshake.md has the whole way.

A VM is in service or out of it, so however many events there are, and however often one changes, prepare.ps1 runs once for
all of them. It is tried again when it fails, and until it has succeeded there is no ready file.

For Windows PowerShell 5.1, which every Windows has.
#>
param(
    [string] $Events = "$env:ProgramData\azure-scheduled-events-exporter\events",
    [string] $State = "$env:ProgramData\azure-scheduled-events-handshake",
    [string] $Prepare = "$PSScriptRoot\prepare.ps1",
    [string] $Resume = "$PSScriptRoot\resume.ps1",
    # Types of events to prepare for that no rule waits for.
    [string[]] $Also = @('Preempt', 'Terminate'),
    # prepare.ps1 and resume.ps1 are ended after so long, and count as failed.
    [int] $PrepareSeconds = 600,
    # From a failure to the next attempt.
    [int] $RetrySeconds = 30,
    # Events of an agent that wrote no status.json for so long count as over.
    [int] $SilentSeconds = 900
)
Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'

$log = "$State\handshake.log"
$marks = "$State\asked"         # one file per event that asked; in it is the path of its ready file, if it has one
$begun = "$State\begun"         # prepare.ps1 was started, so there is something to undo
$prepared = "$State\prepared"   # prepare.ps1 has succeeded
$bootFile = "$State\boot"       # the boot of Windows: what was prepared before it is not prepared any more
$silence = 0
$heard = ''
$pause = 0
$wanted = ''
$unmade = ''

# A log that can't be renamed or written, since a reader has it open or the disk is full, loses a line and ends nothing.
function Write-Log([string] $Text) {
    try {
        if ((Test-Path -LiteralPath $log) -and (Get-Item -LiteralPath $log).Length -gt 1000000) {
            Move-Item -LiteralPath $log -Destination "$log.1" -Force
        }
    } catch { $null = $_ }
    $line = '{0} {1}' -f [DateTime]::UtcNow.ToString('yyyy-MM-ddTHH:mm:ssZ'), $Text
    try { [IO.File]::AppendAllText($log, $line + [Environment]::NewLine) } catch { $null = $_ }
}

# A file that says that this VM is prepared must go. Ended here, this program is started again within a minute.
function Remove-Surely([string] $Path) {
    Remove-Item -LiteralPath $Path -Force -ErrorAction Ignore
    if (Test-Path -LiteralPath $Path) { throw "$Path can't be removed" }
}

# The owner of the folder or of a file in it can say that this VM is prepared, and so release an approval. So can all users
# where the folder has the access list of ProgramData. docs/handshake.md has the commands that close it.
function Assert-Own([string[]] $Paths) {
    $trusted = 'S-1-5-18', 'S-1-5-32-544', [Security.Principal.WindowsIdentity]::GetCurrent().User.Value
    foreach ($item in @(Get-Item -LiteralPath $Paths -Force) + @(Get-ChildItem -LiteralPath $Paths -Force)) {
        if ($item.Attributes -band [IO.FileAttributes]::ReparsePoint) { throw "$($item.FullName) is a link" }
        $owner = (Get-Acl -LiteralPath $item.FullName).GetOwner([Security.Principal.SecurityIdentifier]).Value
        if ($trusted -cnotcontains $owner) { throw "$($item.FullName) belongs to $owner" }
    }
    if (-not (Get-Acl -LiteralPath $State).AreAccessRulesProtected) { throw "$State inherits its access list" }
}

# What a file holds, read so that the agent can replace or remove it meanwhile; $null where there is none.
function Read-Shared([string] $Path) {
    try {
        $stream = [IO.File]::Open($Path, [IO.FileMode]::Open, [IO.FileAccess]::Read, [IO.FileShare]'ReadWrite, Delete')
    } catch [IO.IOException], [UnauthorizedAccessException] {
        return $null
    }
    $reader = New-Object IO.StreamReader($stream)
    try { return $reader.ReadToEnd() } finally { $reader.Dispose() }
}

# An event as its file tells it; $null for what is no event's file.
function Read-Event([string] $Path) {
    $text = Read-Shared $Path
    if (-not $text) { return $null }
    try { $told = ConvertFrom-Json -InputObject $text } catch { return $null }
    if ($told -isnot [Management.Automation.PSCustomObject]) { return $null }
    if ($told.PSObject.Properties.Name -notcontains 'type') { return $null }
    if ($told.type -cne 'azure_scheduled_events.event_file.v1') { return $null }
    return @{ Status = [string] $told.status; Ready = [string] $told.ready_file; Type = [string] $told.event_type }
}

# Whether the agent wrote its status.json lately, which it does every 5 s: counted, since the clock may be set.
function Test-Agent {
    $file = Get-Item -LiteralPath "$Events\status.json" -ErrorAction Ignore
    if ($file -and $file.LastWriteTimeUtc.Ticks.ToString() -ne $script:heard) {
        if ($script:silence -ge $SilentSeconds) { Write-Log 'the agent is there again' }
        $script:heard = $file.LastWriteTimeUtc.Ticks.ToString()
        $script:silence = 0
        return $true
    }
    $script:silence += 1
    if ($script:silence -eq $SilentSeconds) {
        Write-Log "the agent wrote no $Events\status.json in $SilentSeconds passes: its events count as over"
    }
    return $script:silence -lt $SilentSeconds
}

function Remove-Ready([string] $Mark) {
    $path = ([string] (Read-Shared $Mark)).Trim()
    if ($path) { Remove-Surely $path }
}

# Keep the marks as the event files say. Returns the path of an event file that asks, or ''. An event that has asked once does
# so until it is over. Only one that is still Scheduled begins to: there is nothing to prepare for once it has started.
function Update-Marks {
    $there = Test-Agent
    $files = @(Get-ChildItem -LiteralPath $Events -Filter '*.json' -File -ErrorAction Ignore)
    foreach ($file in $files) {
        if (-not $there -or $file.BaseName -notmatch '\A[A-Za-z0-9-]+\z' -or $file.BaseName -eq 'status') { continue }
        $found = Read-Event $file.FullName
        if (-not $found) { continue }
        $mark = "$marks\$($file.BaseName)"
        if (-not (Test-Path -LiteralPath $mark)) {
            if ($found.Status -cne 'Scheduled') { continue }
            if (-not $found.Ready -and $Also -cnotcontains $found.Type) { continue }
            [IO.File]::WriteAllText($mark, $found.Ready)
            Write-Log "$($file.BaseName): $($found.Type) is scheduled"
        } elseif ($found.Ready -and $found.Ready -cne [string] (Read-Shared $mark)) {
            Remove-Ready $mark
            [IO.File]::WriteAllText($mark, $found.Ready)
        }
    }
    $asks = ''
    foreach ($mark in @(Get-ChildItem -LiteralPath $marks -File)) {
        $path = "$Events\$($mark.Name).json"
        if ($there -and (Test-Path -LiteralPath $path)) { $asks = $path; continue }
        Remove-Ready $mark.FullName
        Remove-Item -LiteralPath $mark.FullName -Force
        if ($there) { Write-Log "$($mark.Name): is over" }
    }
    return $asks
}

function Show-Ready {
    foreach ($mark in @(Get-ChildItem -LiteralPath $marks -File)) {
        $path = ([string] (Read-Shared $mark.FullName)).Trim()
        if (-not $path -or (Test-Path -LiteralPath $path)) { continue }
        try {
            [IO.File]::WriteAllText($path, '')
            Write-Log "$($mark.Name): ready, $path"
        } catch {
            if ($script:unmade -ne $path) {
                $script:unmade = $path
                Write-Log "$($mark.Name): the ready file can't be made, so nothing is approved: $($_.Exception.Message)"
            }
        }
    }
}

# Run a script of the operator's for at most $PrepareSeconds, with all that it starts; prepare.ps1 is ended when no event asks
# any more. Whether it succeeded.
function Invoke-Own([string] $What, [string] $Script, [string] $Argument) {
    $line = '-NoProfile -NonInteractive -ExecutionPolicy Bypass -File "{0}" {1}' -f $Script, $Argument
    $process = Start-Process -FilePath "$PSHOME\powershell.exe" -ArgumentList $line -WindowStyle Hidden -PassThru
    $null = $process.Handle # without it there is no ExitCode
    $left = $PrepareSeconds
    while (-not $process.WaitForExit(1000)) {
        $left -= 1
        $asks = Update-Marks
        $reason = ''
        if ($What -eq 'prepare' -and -not $asks) { $reason = 'no event asks any more' }
        if ($left -le 0) { $reason = "not done after $PrepareSeconds s" }
        if ($reason) {
            & "$env:SystemRoot\System32\taskkill.exe" /PID $process.Id /T /F | Out-Null
            $process.WaitForExit()
            Write-Log "$What was ended: $reason"
            if ($left -le 0) { $script:pause = $RetrySeconds }
            return $false
        }
    }
    if ($process.ExitCode -eq 0) { return $true }
    Write-Log "$What failed with exit code $($process.ExitCode); it is tried again in $RetrySeconds s"
    $script:pause = $RetrySeconds
    return $false
}

function Start-Absence([string] $EventFile) {
    Write-Log 'taking this VM out of service'
    [IO.File]::WriteAllText($begun, '')
    if (Invoke-Own 'prepare' $Prepare ('"{0}"' -f $EventFile)) {
        [IO.File]::WriteAllText($prepared, '')
        Write-Log 'out of service'
    }
}

function Stop-Absence {
    Write-Log 'bringing this VM back into service'
    Remove-Surely $prepared
    if (Invoke-Own 'resume' $Resume '') {
        Remove-Item -LiteralPath $begun -Force
        Write-Log 'back in service'
    }
}

Assert-Own $State
$null = New-Item -ItemType Directory -Path $marks -Force
Assert-Own $State, $marks
# The number that the loader of Windows gave this boot, by which the agent knows it too: KUSER_SHARED_DATA.BootId. The time
# of the boot moves when the clock is set. Without a number every start of this program counts as one of Windows.
$boot = [Runtime.InteropServices.Marshal]::ReadInt32([IntPtr] 0x7FFE02C4).ToString()
if ($boot -eq '0' -or [string] (Read-Shared $bootFile) -cne $boot) {
    # Windows has started anew: so have the programs that were taken out of service. What there is to undo is undone below.
    foreach ($mark in @(Get-ChildItem -LiteralPath $marks -File)) {
        Remove-Ready $mark.FullName
        Remove-Item -LiteralPath $mark.FullName -Force
    }
    Remove-Surely $prepared
    [IO.File]::WriteAllText($bootFile, $boot)
}
while ($true) {
    $before = $wanted
    $asks = Update-Marks
    $wanted = if ($asks) { 'out' } else { 'in' }
    if ($wanted -ne $before) { $pause = 0 }
    if ($asks -and (Test-Path -LiteralPath $prepared)) {
        Show-Ready
    } elseif ($pause -le 0 -and $asks) {
        Start-Absence $asks
    } elseif ($pause -le 0 -and (Test-Path -LiteralPath $begun)) {
        Stop-Absence
    }
    $pause -= 1
    Start-Sleep -Seconds 1
}
