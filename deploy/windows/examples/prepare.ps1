# prepare.ps1 EVENT_FILE: take this VM out of service. Exit code 0 says that it is prepared, and that the event may begin.
# It may be run a second time, and may be ended halfway; resume.ps1 then undoes what was done.
param([string] $EventFile, [string] $State = "$env:ProgramData\azure-scheduled-events-handshake")
$ErrorActionPreference = 'Stop'

# For whoever sends work here: a health check can look for this file, and so can the program itself.
Set-Content -LiteralPath "$State\out-of-service" -Value $EventFile

# Your own, such as
#   Invoke-RestMethod -Method Post -Uri http://127.0.0.1:8080/drain -TimeoutSec 5
#   Stop-Service shop              # Local Service may not, unless the service's own access list says so

# Until they have noticed it and the work that is under way is done; less than the 30 s that a Spot VM has.
Start-Sleep -Seconds 15
exit 0
