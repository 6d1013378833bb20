# prepare.ps1 EVENT_FILE: take this VM out of service. Exit code 0 means that the VM is prepared and the event may start.
# It may run twice, and may be interrupted; resume.ps1 then undoes what was done.
param([string] $EventFile, [string] $State = "$env:ProgramData\azure-scheduled-events-handshake")
$ErrorActionPreference = 'Stop'

# A health check or your own program can check for this file.
Set-Content -LiteralPath "$State\out-of-service" -Value $EventFile

# Add your own commands, for example:
#   Invoke-RestMethod -Method Post -Uri http://127.0.0.1:8080/drain -TimeoutSec 5
#   Stop-Service shop              # Local Service needs the right in the service's access list

# Wait until they have noticed the file and the current work is done. Keep it below the 30 s of notice that a Spot VM gets.
Start-Sleep -Seconds 15
exit 0
