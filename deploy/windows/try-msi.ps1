# Installs the MSI of dist/ on this machine, checks that the service responds, and removes it. Run it as administrator and only
# on a CI machine: it removes an existing installation. It does not contact Azure: the source is an address that refuses
# connections.
$ErrorActionPreference = 'Stop'
$name = 'azure-scheduled-events-exporter'
$msi = (Get-Item "dist\$name-*-windows-amd64.msi").FullName
$data = Join-Path $env:ProgramData $name

function Invoke-Msi([string[]] $Arguments) {
    $done = Start-Process msiexec -ArgumentList ($Arguments + '/qn', '/l*v', 'msi.log') -Wait -PassThru
    if ($done.ExitCode -ne 0) {
        Get-Content msi.log -Tail 80
        throw "msiexec $Arguments ended with $($done.ExitCode)"
    }
}

Invoke-Msi '/i', "`"$msi`"", 'LISTEN_PORT=10170', 'EXTRA_FLAGS=--source.url=http://127.0.0.1:9', 'ADDLOCAL=FirewallException'
if ((Get-Service $name).Status -ne 'Running') { throw 'the service is not running' }
Invoke-WebRequest -UseBasicParsing http://localhost:10170/-/healthy -TimeoutSec 30 | Out-Null
if (-not (Get-NetFirewallRule -DisplayName $name)) { throw 'there is no firewall rule' }
Get-CimInstance Win32_Service -Filter "Name='$name'" | Format-List Name, State, StartName, PathName
icacls $data
Get-Content (Join-Path $data 'log\agent.log')

Invoke-Msi '/x', "`"$msi`""
if (Get-Service $name -ErrorAction SilentlyContinue) { throw 'the service is still there' }
if (Get-NetFirewallRule -DisplayName $name -ErrorAction SilentlyContinue) { throw 'the firewall rule is still there' }
if (Test-Path "$env:ProgramFiles\$name") { throw 'the program is still there' }
if (-not (Test-Path (Join-Path $data 'config.toml'))) { throw 'the configuration was removed' }
Write-Output 'installed, responded, and removed; configuration and data are kept'
